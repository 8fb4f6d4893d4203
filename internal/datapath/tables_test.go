// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// backend returns a backend at a port of the address.
func backend(addr netip.AddrPort, port uint16, state service.State, weight uint16) service.Backend {
	return service.Backend{Addr: netip.AddrPortFrom(addr.Addr(), port), State: state, Weight: weight}
}

// change stores the service with other backends.
func (w *world) change(t *testing.T, choice service.Choice, backends ...service.Backend) {
	t.Helper()
	_, _, err := w.Services().Put(t.Context(), service.CLI, service.Service{
		Frontend: w.service, Protocol: service.Protocol(w.proto), Choice: choice, Backends: backends,
	})
	succeed(t, err)
}

// client is where a packet comes from.
type client struct {
	hook objects.Hook
	addr netip.Addr
	mac  string // of the sender, outside
}

func (w *world) pod() client     { return client{hook: fromHost, addr: w.client.Addr()} }
func (w *world) outside() client { return client{fromUplink, w.outsider.Addr(), "aa"} }

// shares opens connections from n ports of the pod, and counts them by the port of the backend.
func (w *world) shares(t *testing.T, n int) map[uint16]int { return w.sharesOf(t, w.pod(), n) }

// sharesOf does so for a client.
func (w *world) sharesOf(t *testing.T, from client, n int) map[uint16]int {
	t.Helper()
	before := must(w.Connections())(t)
	had := make(map[netip.AddrPort]bool)
	for _, c := range before {
		had[c.Client] = true
	}
	w.opened += n
	for i := range n {
		p := w.first(netip.AddrPortFrom(from.addr, uint16(10000+(w.opened+i)%50000)), w.service)
		if from.mac != "" {
			p = p.arriving(from.mac)
		}
		w.send(t, from.hook, p)
	}
	after := must(w.Connections())(t)
	counts := make(map[uint16]int)
	for _, c := range after {
		if !had[c.Client] {
			counts[c.Backend.Port()]++
		}
	}
	return counts
}

// TestChoice opens connections to backends of different weights and states.
func TestChoice(t *testing.T) { runCases(t, objects.AttachHost, choiceCases()) }

func choiceCases() []translateCase {
	active := service.Active
	return []translateCase{
		{"weights", 0, func(t *testing.T, w *world) {
			w.change(t, service.Random, backend(w.remote, 1, active, 1), backend(w.remote, 2, active, 3))
			// The mean is 100, the standard deviation 9.
			if got := w.shares(t, 400); got[1] < 60 || got[1] > 140 || got[1]+got[2] != 400 {
				t.Errorf("backends of weights 1 and 3 got %v", got)
			}
		}},
		{"maglev", 0, func(t *testing.T, w *world) { w.sameTable(t) }},
		{"one backend by maglev", 0, func(t *testing.T, w *world) {
			w.change(t, service.Maglev, backend(w.remote, 1, active, 1))
			equal(t, w.shares(t, 20)[1], 20, "connections of the chosen backend")
		}},
		{"table is missing", 0, func(t *testing.T, w *world) {
			w.store(t, objects.Service{Id: 1, Revision: 1 << 30, Count: 2, Total: 2, Table: 1024})
			w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_backend_missing")
		}},
		{"only active ones", 0, func(t *testing.T, w *world) {
			w.change(t, service.Random, backend(w.remote, 1, service.Quarantined, 1), backend(w.remote, 2, service.Draining, 1),
				backend(w.remote, 3, service.Terminating, 1), backend(w.remote, 4, active, 1))
			equal(t, w.shares(t, 50)[4], 50, "connections of the chosen backend")
		}},
		{"terminating without an active one", 0, func(t *testing.T, w *world) {
			w.change(t, service.Maglev, backend(w.remote, 1, service.Quarantined, 1), backend(w.remote, 2, service.Draining, 1),
				backend(w.remote, 3, service.Terminating, 1), backend(w.remote, 4, service.Terminating, 2))
			if got := w.shares(t, 100); got[3] == 0 || got[4] <= got[3] || got[3]+got[4] != 100 {
				t.Errorf("backends got %v", got)
			}
		}},
		{"none for new ones", 0, func(t *testing.T, w *world) {
			w.change(t, service.Maglev, backend(w.remote, 1, service.Quarantined, 1), backend(w.remote, 2, service.Draining, 1))
			before := counts(t, w.Datapath)
			w.run(t, fromHost, w.first(w.client, w.service).frame())
			equal(t, delta(t, w.Datapath, before)["drop_no_backend"], 1, "drop_no_backend")
			w.connected(t)
		}},
		{"keeps its backend", 0, func(t *testing.T, w *world) {
			for _, state := range []service.State{service.Terminating, service.Draining, service.Quarantined} {
				w.forget(t)
				w.change(t, service.Random, backend(w.remote, 8080, active, 1))
				w.send(t, fromHost, w.first(w.client, w.service))
				w.change(t, service.Random, backend(w.remote, 8080, state, 1), backend(w.remote, 2, active, 1))
				w.gets(t, fromHost, w.next(w.client, w.service), "next client>remote: forward passed")
				if got := w.shares(t, 20); got[2] != 20 {
					t.Errorf("%s: backends got %v", state, got)
				}
			}
		}},
	}
}

// sameTable takes a backend away: nearly all connections that are opened anew go to the backends that they had.
func (w *world) sameTable(t *testing.T) {
	t.Helper()
	owner := func(backends ...service.Backend) map[netip.AddrPort]uint16 {
		w.forget(t)
		w.change(t, service.Maglev, backends...)
		for i := range 300 {
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), uint16(10000+i)), w.service))
		}
		all := must(w.Connections())(t)
		owners := make(map[netip.AddrPort]uint16)
		for _, c := range all {
			owners[c.Client] = c.Backend.Port()
		}
		return owners
	}
	var three []service.Backend
	for port := range uint16(3) {
		three = append(three, backend(w.remote, 1+port, service.Active, 1))
	}
	before := owner(three...)
	after, moved := owner(three[:2]...), 0
	for client, port := range before {
		if port != 3 && after[client] != port {
			moved++
		}
	}
	if len(before) != 300 || len(after) != 300 || moved > 15 {
		t.Errorf("%d of %d connections to other backends moved", moved, len(before))
	}
}

// wantBlocks counts the rows of look-up tables.
func wantBlocks(t *testing.T, d *Datapath, want int) {
	t.Helper()
	n := 0
	for _, err := range d.objects.LookUp.All() {
		succeed(t, err)
		n++
	}
	failIf(t, n != want, "%d rows of look-up tables, want %d", n, want)
}

// TestAffinity opens connections of clients that keep their backends.
func TestAffinity(t *testing.T) { runCases(t, objects.AttachHost, affinityCases()) }

func affinityCases() []translateCase {
	return []translateCase{
		{"one backend for a client", 0, func(t *testing.T, w *world) {
			w.affine(t, w.eight()...)
			w.soleBackend(t)
		}},
		{"other clients have others", 0, func(t *testing.T, w *world) {
			w.affine(t, w.eight()...)
			used := make(map[uint16]bool)
			addr := w.client.Addr()
			for range 20 {
				w.client = netip.AddrPortFrom(addr, w.client.Port())
				used[w.soleBackend(t)] = true
				addr = addr.Next()
				w.forget(t)
			}
			failIf(t, len(used) < 3, "20 clients got %d backends of 8", len(used))
		}},
		{"a change of other backends", 0, func(t *testing.T, w *world) {
			w.affine(t, w.eight()...)
			had := w.soleBackend(t)
			w.affine(t, backend(w.remote, had, service.Active, 1), backend(w.remote, 9, service.Active, 1))
			equal(t, w.soleBackend(t), had, "the client moved from backend")
		}},
		{"its backend drains", 0, func(t *testing.T, w *world) {
			eight := w.eight()
			w.affine(t, eight...)
			had := w.soleBackend(t)
			eight[had-1].State = service.Draining
			w.affine(t, eight...)
			if now := w.soleBackend(t); now == had {
				t.Errorf("the client stays at backend %d, which drains", had)
			}
		}},
		{"time-out", 0, func(t *testing.T, w *world) {
			w.affine(t, w.eight()...)
			used := make(map[uint16]bool)
			for range 20 {
				used[w.soleBackend(t)] = true
				w.ageAffinity(t, 40*time.Second)
				used[w.soleBackend(t)] = true
			}
			failIf(t, len(used) != 1, "the client got backends %v before the time-out", used)
			for range 20 {
				w.ageAffinity(t, 61*time.Second)
				used[w.soleBackend(t)] = true
			}
			failIf(t, len(used) < 3, "the client got %d backends of 8 after 20 time-outs", len(used))
		}},
	}
}

// eight returns backends at ports 1 to 8.
func (w *world) eight() (backends []service.Backend) {
	for port := range uint16(8) {
		backends = append(backends, backend(w.remote, port+1, service.Active, 1))
	}
	return backends
}

// affine stores the service with an affinity of a minute.
func (w *world) affine(t *testing.T, backends ...service.Backend) {
	t.Helper()
	_, _, err := w.Services().Put(t.Context(), service.CLI, service.Service{
		Frontend: w.service, Protocol: service.Protocol(w.proto), Affinity: time.Minute, Backends: backends,
	})
	succeed(t, err)
}

// soleBackend opens 20 connections of the client, and returns the port of the backend that gets them all.
func (w *world) soleBackend(t *testing.T) (port uint16) {
	t.Helper()
	got := w.shares(t, 20)
	for port = range got {
	}
	if got[port] != 20 {
		t.Fatalf("the client's connections went to backends %v", got)
	}
	return port
}

// ageAffinity makes it longer ago that clients opened connections.
func (w *world) ageAffinity(t *testing.T, d time.Duration) {
	t.Helper()
	affinities := must(ebpf.LoadPinnedMap(pins(w.Datapath, "maps", "affinities"), nil))(t)
	defer affinities.Close()
	var key, value []byte
	aged := make(map[string][]byte) // a row that is written meanwhile may be read again
	for rows := affinities.Iterate(); rows.Next(&key, &value); {
		seen := value[len(value)-8:]
		binary.LittleEndian.PutUint64(seen, binary.LittleEndian.Uint64(seen)-uint64(d))
		aged[string(key)] = bytes.Clone(value)
	}
	for key, value := range aged {
		succeed(t, affinities.Put([]byte(key), value))
	}
}
