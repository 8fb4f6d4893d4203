// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

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
			if len(used) < 3 {
				t.Errorf("20 clients got %d backends of 8", len(used))
			}
		}},
		{"a change of other backends", 0, func(t *testing.T, w *world) {
			w.affine(t, w.eight()...)
			had := w.soleBackend(t)
			w.affine(t, backend(w.remote, had, service.Active, 1), backend(w.remote, 9, service.Active, 1))
			if now := w.soleBackend(t); now != had {
				t.Errorf("the client moved from backend %d to %d", had, now)
			}
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
			if len(used) != 1 {
				t.Errorf("the client got backends %v before the time-out", used)
			}
			for range 20 {
				w.ageAffinity(t, 61*time.Second)
				used[w.soleBackend(t)] = true
			}
			if len(used) < 3 {
				t.Errorf("the client got %d backends of 8 after 20 time-outs", len(used))
			}
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
	if err != nil {
		t.Fatal(err)
	}
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

// testAffinity calls a service with session affinity from all sockets of a pod.
func testAffinity(t *testing.T, s *stage) {
	servers := listenUDP(t, s.pods[0], podA4, 3)
	want := service.Service{Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.Any, Affinity: time.Hour}
	for _, server := range servers {
		want.Backends = append(want.Backends, service.Backend{Addr: server.addr})
	}
	must2(s.Services().Put(t.Context(), service.CLI, want))(t)
	for i, c := range s.client().openAll(t, make([]*socketFD, 100), false, unix.SOCK_DGRAM) {
		to := want.Frontend
		if i%2 == 0 {
			c.mustConnect(to)
			to = netip.AddrPort{}
		}
		c.mustSend("x", to)
	}
	var got []int
	for _, server := range servers {
		got = append(got, len(server.received(t)))
	}
	if max(got[0], got[1], got[2]) != 100 {
		t.Errorf("backends got %v of 100", got)
	}
}
