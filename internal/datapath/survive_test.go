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

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// standing is TCP connections of one pod to a service whose backends are in the other.
type standing struct {
	network  network
	d        *Datapath
	frontend netip.AddrPort
	choice   service.Choice
	backends []netip.AddrPort
	conns    []*bufio.ReadWriter
	clients  []netip.AddrPort
}

func newStanding(t *testing.T, backends, conns int) *standing {
	t.Helper()
	s := &standing{network: routed(t), d: openTest(t), frontend: netip.MustParseAddrPort(service4 + ":80")}
	s.network.attachBoth(t, s.d)
	for range backends {
		s.backends = append(s.backends, testkit.Echo(t, s.network.pods[0], "tcp", podA4+":0"))
	}
	s.put(t, s.backends...)
	s.open(t, conns)
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
	want := service.Service{Frontend: s.frontend, Protocol: service.TCP, Choice: s.choice, Backends: service.Backends(backends...)}
	must2(s.d.Services().Put(t.Context(), service.CLI, want))(t)
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

// TestConnectionsSurviveChanges has open connections while backends come and go.
func TestConnectionsSurviveChanges(t *testing.T) {
	s := newStanding(t, 8, 40)
	for _, left := range [][]netip.AddrPort{s.backends[1:], s.backends[:1], s.backends, s.backends[7:], s.backends[2:5]} {
		s.put(t, left...)
		if broken := s.broken(); len(broken) > 0 {
			t.Fatalf("%d connections broke when the backends became %v", len(broken), left)
		}
	}
}

// TestLostRowsKeepBackends empties the table of connections after a backend went and after it came back. The next packet of
// a connection to another backend must find that again, where Maglev chooses. It sends a few elsewhere (NSDI 2016, section
// 5.3).
func TestLostRowsKeepBackends(t *testing.T) {
	const backends, conns = 10, 320
	for name, change := range map[string][2]int{"one goes": {10, 9}, "one comes": {9, 10}} {
		t.Run(name, func(t *testing.T) {
			s := newStanding(t, backends, 0)
			s.choice = service.Maglev
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
			if len(broken) > limit {
				t.Errorf("%d connections found another backend, want at most %d", len(broken), limit)
			}
		})
	}
}
