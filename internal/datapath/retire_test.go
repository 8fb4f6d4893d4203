// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// wantClean fails the test unless the maps hold the rows of the services and nothing else, and no work is marked as
// unfinished.
func wantClean(t *testing.T, d *Datapath) {
	t.Helper()
	sum := size{}
	for _, s := range rowsOf(t, d) {
		sum = sum.plus(sizeOf(s), 1)
	}
	wantSlots(t, d, sum.backends)
	wantBlocks(t, d, sum.blocks)
	if n := rangesOf(t, d); n != sum.ranges {
		t.Errorf("%d source ranges, want %d", n, sum.ranges)
	}
	wantAddresses(t, d)
	wantFiltered(t, d)
	if state, err := readState(d.objects); err != nil || state.Retiring != 0 {
		t.Errorf("state %+v, %v; want nothing to retire", state, err)
	}
}

// TestRetiring deletes the rows of backends, tables and source ranges that go, by each call that takes them away: also by those that find the work of a
// process that died.
func TestRetiring(t *testing.T) {
	for _, choice := range []service.Choice{service.Random, service.Maglev} {
		t.Run(choice.String(), func(t *testing.T) { testRetiring(t, choice) })
	}
}

func testRetiring(t *testing.T, choice service.Choice) {
	old := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := newService(service.Any, "10.96.0.1:80", "192.168.10.11:8080")
	old.Choice, fewer.Choice = choice, choice
	old.SourceRanges = prefixes("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16")
	fewer.SourceRanges = old.SourceRanges[1:]
	d := openTest(t)
	s := d.Services()
	for name, do := range map[string]func() error{
		"Apply":            func() error { _, err := s.Apply(t.Context(), service.CLI, []service.Service{fewer}); return err },
		"Put":              func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply of nothing": func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err },
		"Delete":           func() error { return s.Delete(t.Context(), service.CLI, old.Key()) },
		"unchanged":        func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err },
		"Put after death":  func() error { die(t, d, fewer); _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply after death": func() error {
			die(t, d, fewer)
			_, err := s.Apply(t.Context(), service.CLI, []service.Service{fewer})
			return err
		},
		"Sweep after death":  func() error { die(t, d, fewer); return s.Sweep(t.Context()) },
		"Delete after death": func() error { die(t, d, fewer); return s.Delete(t.Context(), service.CLI, old.Key()) },
		"Delete after death of a Delete": func() error {
			dieDeleting(t, d, old)
			var missing *NotFoundError
			if err := s.Delete(t.Context(), service.CLI, old.Key()); !errors.As(err, &missing) {
				return fmt.Errorf("Delete: error %w, want that it does not exist", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			must2(s.Put(t.Context(), service.CLI, old))(t)
			succeed(t, do())
			wantClean(t, d)
		})
	}
}

// die changes a service as a process does that dies before it retires the old backends.
func die(t *testing.T, d *Datapath, want service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), want.Key()))(t)
	succeed(t, w.write(t.Context(), []change{{put: []service.Service{want}, found: found}}))
}

// dieDeleting deletes a service as a process does that dies before it retires the backends.
func dieDeleting(t *testing.T, d *Datapath, old service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found := must(w.at(t.Context(), old.Key()))(t)
	succeed(t, w.write(t.Context(), []change{{drop: found, found: found}}))
}

// TestSweepEndsConnections has a UDP connection to a backend that a process replaced, which died before it told programs.
func TestSweepEndsConnections(t *testing.T) {
	w := newWorld(newBench(t), false, protoUDP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	p := w.next(w.client, w.service)
	w.send(t, fromHost, p)
	key := rows.ServiceKey(w.service, service.UDP)
	row, _ := must2(w.objects.Services.Get(key))(t)
	state := must(readState(w.objects))(t)
	state.LastRevision++
	state.Retiring, row.Revision = state.LastRevision, state.LastRevision
	backend := rows.EncodeBackend(service.Backend{Addr: w.remote})
	row.SetBackend(0, backend)
	if err := errors.Join(w.objects.State.Put(0, state), w.objects.Backends.Put(objects.BackendKey{Revision: row.Revision}, backend),
		w.objects.Services.Put(key, row)); err != nil {
		t.Fatal(err)
	}
	w.serve(t, w.service, w.remote) // unchanged
	w.gets(t, fromHost, p, "next client>remote: new_connection forward passed")
}
