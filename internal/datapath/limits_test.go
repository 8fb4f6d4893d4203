// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestSegments sends a GSO packet, whose segment count must stay.
func TestSegments(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.reset(t, objects.AttachHost)
		w.serve(t, w.service, w.backend)
		p := w.first(w.client, w.service).with(func(p *packet) { p.payload = string(make([]byte, 3000)) })
		// struct __sk_buff of <linux/bpf.h>.
		const segments, size, length = 164, 176, 192
		in, out := make([]byte, length), make([]byte, length)
		binary.NativeEndian.PutUint32(in[segments:], 3)
		binary.NativeEndian.PutUint32(in[size:], 1400)
		opts := &ebpf.RunOptions{Data: p.frame(), DataOut: make([]byte, 4096), Context: in, ContextOut: out}
		action := must(b.loaded(t, fromHost).Run(opts))(t)
		if action != actionRedirect || string(opts.DataOut) != string(p.became(w.client, w.backend, "0a").frame()) {
			t.Errorf("action %d, or the packet is wrong", action)
		}
		equal(t, binary.NativeEndian.Uint32(out[segments:]), 3, "segments")
	}
}

// TestSpread checks that each backend gets its share.
func TestSpread(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.clear(t)
		var backends []netip.AddrPort
		for port := range uint16(10) {
			backends = append(backends, netip.AddrPortFrom(w.remote.Addr(), 8080+port))
		}
		w.serve(t, w.service, backends...)
		const connections = 1000
		for port := range uint16(connections) {
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 32768+2*port), w.service))
		}
		shares := make(map[netip.AddrPort]int)
		got := must(w.Connections())(t)
		for _, c := range got {
			shares[c.Backend]++
		}
		// A fair die gives each 100, and with a probability under one in a million less than 55 or more than 150.
		for _, backend := range backends {
			if n := shares[backend]; n < 55 || n > 150 {
				t.Errorf("%s has %d of %d connections", backend, n, connections)
			}
		}
	}
}

// TestFull has maps that are too small.
func TestFull(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 2, Backends: 5, Connections: 64, Endpoints: 1}})
	backends := func(n int) (list []service.Backend) {
		for i := range n {
			list = append(list, service.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr("192.168.10.10"), uint16(1+i))})
		}
		return list
	}
	for _, c := range []struct {
		name    string
		service service.Service
		table   string
	}{
		{"fits", service.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: service.TCP, Backends: backends(3)}, ""},
		{"backends", service.Service{Frontend: netip.MustParseAddrPort("10.96.0.2:1"), Protocol: service.TCP, Backends: backends(3)}, "backends"},
		{"update", service.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: service.TCP, Backends: backends(4)}, "backends"},
		{"still fits", service.Service{Frontend: netip.MustParseAddrPort("10.96.0.4:1"), Protocol: service.TCP, Backends: backends(1)}, ""},
		{"rows", service.Service{Frontend: netip.MustParseAddrPort("10.96.0.3:1"), Protocol: service.Any, Backends: backends(1)}, "services"},
	} {
		_, _, err := d.Services().Put(t.Context(), service.CLI, c.service)
		var full *objects.FullError
		switch {
		case c.table == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.table != "" && (!errors.As(err, &full) || full.Map != c.table):
			t.Errorf("%s: error %v, want that %q is full", c.name, err, c.table)
		}
	}
	wantServices(t, d,
		service.Service{Frontend: netip.MustParseAddrPort("10.96.0.1:1"), Protocol: service.TCP, Backends: backends(3)},
		service.Service{Frontend: netip.MustParseAddrPort("10.96.0.4:1"), Protocol: service.TCP, Backends: backends(1)})
	wantSlots(t, d, 4)
}

// TestNumbersUsedUp has given out all but a few numbers. The changes that would need more are refused, and change nothing.
func TestNumbersUsedUp(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root"})
	state := must(d.Services().o.NodeState.IDs())(t)
	state.LastRevision, state.LastService = math.MaxUint32-5, math.MaxUint32-5
	succeed(t, d.Services().o.NodeState.PutIDs(state))
	added := 0
	for port := range uint16(4) {
		_, _, err := d.Services().Put(t.Context(), service.CLI, service.Service{
			Frontend: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), 80+port), Protocol: service.TCP,
			Backends: []service.Backend{{Addr: netip.MustParseAddrPort("192.168.10.10:80")}},
		})
		if err == nil {
			added++
			continue
		}
		if !errors.Is(err, errNumbersUsedUp) {
			t.Fatal(err)
		}
	}
	services := must(d.Services().List(t.Context()))(t)
	// One takes two revisions: its own, and that of the change.
	if added != 2 || len(services) != 2 {
		t.Errorf("%d services were added, and there are %d, want 2", added, len(services))
	}
	for _, s := range services {
		failIf(t, len(s.Backends) != 1 || s.Revision < math.MaxUint32-5, "%+v", s)
	}
}

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
	equal(t, rangesOf(t, d), sum.ranges, "source ranges")
	wantAddresses(t, d)
	wantFiltered(t, d)
	if state, err := d.objects.NodeState.IDs(); err != nil || state.Retiring != 0 {
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
		"Apply":             func() error { _, err := s.Apply(t.Context(), service.CLI, []service.Service{fewer}); return err },
		"Put":               func() error { _, _, err := s.Put(t.Context(), service.CLI, fewer); return err },
		"Apply of nothing":  func() error { _, err := s.Apply(t.Context(), service.CLI, nil); return err },
		"Delete":            func() error { return s.Delete(t.Context(), service.CLI, old.Key()) },
		"unchanged":         func() error { _, _, err := s.Put(t.Context(), service.CLI, old); return err },
		"Sweep after death": func() error { die(t, d, fewer); return s.Sweep(t.Context()) },
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
	w := pods(t, false, protoUDP)
	w.serve(t, w.service, w.backend)
	p := w.next(w.client, w.service)
	w.send(t, fromHost, p)
	key := rows.ServiceKey(w.service, service.UDP)
	row, _ := must2(w.objects.Services.Get(key))(t)
	state := must(w.objects.NodeState.IDs())(t)
	state.LastRevision++
	state.Retiring, row.Revision = state.LastRevision, state.LastRevision
	backend := rows.EncodeBackend(service.Backend{Addr: w.remote})
	row.SetBackend(0, backend)
	if err := errors.Join(w.objects.NodeState.PutIDs(state), w.objects.Backends.Put(objects.BackendKey{Revision: row.Revision}, backend),
		w.objects.Services.Put(key, row)); err != nil {
		t.Fatal(err)
	}
	w.serve(t, w.service, w.remote) // unchanged
	w.gets(t, fromHost, p, "next client>remote: new_connection forward passed")
}
