// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// wantClean fails the test unless the maps hold the rows of the services and nothing else, and no work is marked as
// unfinished.
func wantClean(t *testing.T, d *Datapath) {
	t.Helper()
	backends := 0
	for _, s := range rowsOf(t, d) {
		backends += len(s.Backends)
	}
	wantSlots(t, d, backends)
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

// TestRetiring has UDP connections to backends that stay and that go, by each call that takes them away: also by those that
// find the work of a process that died.
func TestRetiring(t *testing.T) {
	old := newService(service.Any, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := newService(service.Any, "10.96.0.1:80", "192.168.10.11:8080")
	d := openTest(t)
	s := d.Services()
	for name, c := range map[string]struct {
		left []string // the backends that have connections still
		do   func() error
	}{
		"Apply":            {[]string{"192.168.10.11:8080"}, func() error { _, err := s.Apply(t.Context(), service.CLI, []service.Service{fewer}); return err }},
		"Put":              {[]string{"192.168.10.11:8080"}, func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err }},
		"Apply of nothing": {nil, func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err }},
		"Delete":           {nil, func() error { return s.Delete(t.Context(), service.CLI, old.Key()) }},
		"unchanged":        {[]string{"192.168.10.10:8080", "192.168.10.11:8080"}, func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err }},
		"Put after death":  {[]string{"192.168.10.11:8080"}, func() error { die(t, d, fewer); _, _, err := s.Put(t.Context(), service.CLI, fewer); return err }},
		"Apply after death": {[]string{"192.168.10.11:8080"}, func() error {
			die(t, d, fewer)
			_, err := s.Apply(t.Context(), service.CLI, []service.Service{fewer})
			return err
		}},
		"Sweep after death":  {[]string{"192.168.10.11:8080"}, func() error { die(t, d, fewer); return s.Sweep(t.Context()) }},
		"Delete after death": {nil, func() error { die(t, d, fewer); return s.Delete(t.Context(), service.CLI, old.Key()) }},
		"Delete after death of a Delete": {nil, func() error {
			dieDeleting(t, d, old)
			var missing *NotFoundError
			if err := s.Delete(t.Context(), service.CLI, old.Key()); !errors.As(err, &missing) {
				return fmt.Errorf("Delete: error %w, want that it does not exist", err)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, id, err := s.Put(t.Context(), service.CLI, old)
			if err != nil {
				t.Fatal(err)
			}
			revision := rowsOf(t, d)[old.Key()].Revision
			for i, b := range old.Backends {
				from := objects.Tuple{Saddr: encodeAddr(netip.MustParseAddr("192.168.10.20")), Sport: uint16(i),
					Daddr: encodeAddr(old.Frontend.Addr()), Dport: swapPort(80), Proto: uint8(service.UDP)}
				to := from
				to.Daddr, to.Dport = encodeAddr(b.Addr.Addr()), swapPort(b.Addr.Port())
				forward := objects.Connection{To: to, Service: id, Revision: revision, Flags: objects.ConnectionForward}
				back := objects.Connection{To: reverse(from), Service: id, Revision: revision}
				if err := errors.Join(d.objects.Connections.Put(from, forward), d.objects.Connections.Put(reverse(to), back)); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			var left []string
			rows := 0
			for row, err := range d.objects.Connections.All() {
				if err != nil {
					t.Fatal(err)
				}
				rows++
				if row.Value.Flags&objects.ConnectionForward != 0 {
					left = append(left, decodeAddrPort(row.Value.To.Daddr, row.Value.To.Dport).String())
				}
			}
			slices.Sort(left)
			if !slices.Equal(left, c.left) || rows != 2*len(left) {
				t.Errorf("connections to %v in %d rows, want those to %v", left, rows, c.left)
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

// TestRetireKeepsLaterConnections retires a set of backends when another client has stored the service with one of them
// again, and a connection was made from that.
func TestRetireKeepsLaterConnections(t *testing.T) {
	d := openTest(t)
	old := newService(service.UDP, "10.96.0.1:80", "192.168.10.10:8080")
	id := uint32(1)
	applier{d, service.CLI}.apply(t, Result{Added: 1, RowsWritten: 2}, old)
	w := &writer{Services: d.Services(), owner: service.CLI}
	found, err := w.at(t.Context(), old.Key())
	if err != nil {
		t.Fatal(err)
	}
	other := newService(service.UDP, "10.96.0.1:80", "192.168.10.11:8080")
	if err := w.write(t.Context(), []change{{put: []service.Service{other}, found: found}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Services().Put(t.Context(), service.CLI, old); err != nil {
		t.Fatal(err)
	}
	from := objects.Tuple{Sport: 1, Daddr: encodeAddr(old.Frontend.Addr()), Dport: swapPort(80), Proto: uint8(service.UDP)}
	to := from
	to.Daddr, to.Dport = encodeAddr(old.Backends[0].Addr.Addr()), swapPort(8080)
	later := objects.Connection{To: to, Service: id, Revision: rowsOf(t, d)[old.Key()].Revision, Flags: objects.ConnectionForward}
	if err := d.objects.Connections.Put(from, later); err != nil {
		t.Fatal(err)
	}
	if err := w.retire(); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := d.objects.Connections.Get(from); err != nil || !ok {
		t.Errorf("the connection is there: %v, %v; want it kept", ok, err)
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
