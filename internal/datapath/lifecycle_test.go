// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func (w *world) unserve(t *testing.T, frontend netip.AddrPort) {
	t.Helper()
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend,
		Protocol: service.Protocol(w.proto)}))
}

// age makes all connections older, by less than the time since the machine has started.
func (w *world) age(t *testing.T, d time.Duration) {
	t.Helper()
	w.ageAll(t, func(slot *objects.Slot) { slot.Seen -= uint64(d) })
}

// ageAll changes the times of all connections.
func (w *world) ageAll(t *testing.T, change func(*objects.Slot)) {
	t.Helper()
	aged := make(map[uint32]objects.Slot)
	succeed(t, w.objects.Slots.Each(func(index uint32, slot objects.Slot) bool {
		change(&slot)
		aged[index] = slot
		return true
	}))
	for index, slot := range aged {
		succeed(t, w.objects.Slots.Map.Put(index, slot))
	}
}

// standing is TCP connections of one pod to a service whose backends are in the other.
type standing struct {
	network  network
	d        *Datapath
	frontend netip.AddrPort
	backends []netip.AddrPort
	conns    []*bufio.ReadWriter
	clients  []netip.AddrPort
}

func newStanding(t *testing.T, backends int) *standing {
	t.Helper()
	s := &standing{network: routed(t), d: openTest(t), frontend: netip.MustParseAddrPort(service4 + ":80")}
	s.network.attachBoth(t, s.d)
	for range backends {
		s.backends = append(s.backends, testkit.Echo(t, s.network.pods[0], "tcp", podA4+":0"))
	}
	return s
}

// open makes connections.
func (s *standing) open(t *testing.T, conns int) {
	t.Helper()
	for range conns {
		conn := must(testkit.Dial(s.network.pods[1], "tcp", s.frontend.String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		succeed(t, conn.SetDeadline(time.Now().Add(5*time.Minute)))
		c := bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
		if _, err := c.ReadString('\n'); err != nil { // the server says who calls
			t.Fatal(err)
		}
		s.conns = append(s.conns, c)
		s.clients = append(s.clients, conn.LocalAddr().(*net.TCPAddr).AddrPort())
	}
}

func (s *standing) put(t *testing.T, backends ...netip.AddrPort) {
	t.Helper()
	want := service.Service{Frontend: s.frontend, Protocol: service.TCP, Choice: service.Maglev,
		Backends: service.Backends(backends...)}
	putService(t, s.d, want)
}

// broken returns the clients whose connection does not carry a line there and back.
func (s *standing) broken() (clients []netip.AddrPort) {
	for i, c := range s.conns {
		_, err := fmt.Fprintln(c, "ping")
		if err == nil {
			err = c.Flush()
		}
		if err == nil {
			_, err = c.ReadString('\n')
		}
		if err != nil {
			clients = append(clients, s.clients[i])
		}
	}
	return clients
}

// TestLostRowsKeepBackends empties the table of connections after a backend went and after it came back. The next
// packet of a connection to another backend must find that again, where Maglev chooses. It sends a few elsewhere (NSDI
// 2016, section
// 5.3).
func TestLostRowsKeepBackends(t *testing.T) {
	const backends, conns = 10, 320
	for name, change := range map[string][2]int{"one goes": {10, 9}, "one comes": {9, 10}} {
		t.Run(name, func(t *testing.T) {
			s := newStanding(t, backends)
			s.put(t, s.backends[:change[0]]...)
			s.open(t, conns)
			open, err := s.d.Connections()
			if err != nil || len(open) != conns {
				t.Fatalf("%d connections, %v; want %d", len(open), err, conns)
			}
			gone := make(map[netip.AddrPort]bool) // clients whose backend goes
			for _, c := range open {
				gone[c.Client] = !slices.Contains(s.backends[:change[1]], c.Backend)
			}
			s.put(t, s.backends[:change[1]]...)
			(&world{bench: benchOn(t, s.d)}).forget(t)
			broken := slices.DeleteFunc(s.broken(), func(c netip.AddrPort) bool { return gone[c] })
			limit := conns / 20
			if change[1] > change[0] { // the new backend takes its share of connections that nobody remembers
				limit += conns / backends * 3 / 2
			}
			t.Logf("%d of %d connections broke", len(broken), conns)
			failIf(t, len(broken) > limit, "%d connections found another backend, want at most %d", len(broken), limit)
		})
	}
}
