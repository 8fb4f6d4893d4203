// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
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
		conn, err := testkit.Dial(s.network.pods[1], "tcp", s.frontend.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			t.Fatal(err)
		}
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
	want := service.Service{Frontend: s.frontend, Protocol: service.TCP, Backends: service.Backends(backends...)}
	if _, _, err := s.d.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
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
