// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
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
	wantFiltered(t, d)
	if state, err := readState(d.objects); err != nil || state.Retiring != 0 {
		t.Errorf("state %+v, %v; want nothing to retire", state, err)
	}
}

// applyVariable makes the test binary a process that applies one set of services after another, until it is killed.
const applyVariable = "MUSTANG_DATAPATH_APPLY"

const killedServices = 3000

func applyChild(root string) int {
	d, err := OpenExisting(Options{Root: root})
	for variant := 0; err == nil; variant++ {
		_, err = d.Services().Apply(context.Background(), service.Agent, manyServices(killedServices-variant%2*500, variant%3))
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestApplyKilled kills a process that applies sets of services; the next Apply repairs what it left.
func TestApplyKilled(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 4000, Backends: 16000, Connections: 64, Endpoints: 1}})
	unfinished := 0
	for i := range testkit.Repeats(20, 500) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), applyVariable+"="+d.objects.Root())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for { // until it has begun
			state, err := readState(d.objects)
			if err != nil {
				t.Fatal(err)
			}
			if state.LastRevision > uint32(i) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		wantFiltered(t, d)
		if state, err := readState(d.objects); err != nil || state.Retiring != 0 {
			unfinished++
		}
		want := manyServices(killedServices, i%3)
		if _, err := d.Services().Apply(t.Context(), service.Agent, want); err != nil {
			t.Fatal(err)
		}
		got := rowsOf(t, d)
		for _, s := range want {
			if have, ok := got[s.Key()]; !ok || !have.Equal(s) {
				t.Fatalf("service %+v, want %+v", have, s)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d services, want %d", len(got), len(want))
		}
		wantClean(t, d)
	}
	t.Logf("%d killed processes left work", unfinished)
}

// TestRetiring deletes the rows of backends and tables that go, by each call that takes them away: also by those that find the work of a
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
			if _, _, err := s.Put(t.Context(), service.CLI, old); err != nil {
				t.Fatal(err)
			}
			if err := do(); err != nil {
				t.Fatal(err)
			}
			wantClean(t, d)
		})
	}
}

// die changes a service as a process does that dies before it retires the old backends.
func die(t *testing.T, d *Datapath, want service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found, err := w.at(t.Context(), want.Key())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t.Context(), []change{{put: []service.Service{want}, found: found}}); err != nil {
		t.Fatal(err)
	}
}

// dieDeleting deletes a service as a process does that dies before it retires the backends.
func dieDeleting(t *testing.T, d *Datapath, old service.Service) {
	t.Helper()
	w := &writer{Services: d.Services(), owner: service.CLI}
	found, err := w.at(t.Context(), old.Key())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(t.Context(), []change{{drop: found, found: found}}); err != nil {
		t.Fatal(err)
	}
}

// TestSweepEndsConnections has a UDP connection to a backend that a process replaced, which died before it told programs.
func TestSweepEndsConnections(t *testing.T) {
	w := newWorld(newBench(t), false, protoUDP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	p := w.next(w.client, w.service)
	w.send(t, fromHost, p)
	key := rows.ServiceKey(w.service, service.UDP)
	row, _, err := w.objects.Services.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	state, err := readState(w.objects)
	if err != nil {
		t.Fatal(err)
	}
	state.LastRevision++
	state.Retiring, row.Revision = state.LastRevision, state.LastRevision
	backend := rows.EncodeBackend(service.Backend{Addr: w.remote})
	row.SetBackend(0, backend)
	if err := errors.Join(w.objects.State.Put(0, state), w.objects.Backends.Put(objects.BackendKey{Revision: row.Revision}, backend),
		w.objects.Services.Put(key, row)); err != nil {
		t.Fatal(err)
	}
	w.serve(t, w.service, w.remote) // unchanged
	w.check(t, fromHost, p, wants{actionNext, p.became(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
}
