// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// dialect is a family of sockets and of what they call.
type dialect struct {
	name    string
	v6      bool // the socket
	service string
	pod     string
	client  string
}

func dialects() []dialect {
	return []dialect{
		{"ipv4", false, "10.96.0.100:5201", podA4, podB4},
		{"ipv6", true, "[fd00:96::100]:5201", podA6, podB6},
		{"mapped", true, "10.96.0.100:5201", podA4, podB4},
	}
}

// TestSocket has two pods and socket translation alone. To make those takes longer than to use them; so each part takes
// up what the one before it left, and those that end something come last.
func TestSocket(t *testing.T) {
	s := newStage(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *stage)
	}{
		{"calls", testCalls},
		{"spread", testSpread},
		{"chosen", testChosen},
		{"affinity", testAffinity},
		{"backends on this node only", testLocalSockets},
		{"source ranges", testRangedSockets},
		{"changes", testChanges},
		{"resets", testResetSockets},
		{"follows", testFollows},
		{"refused", testRefused},
		{"reuse", testReuse},
		{"multipath", testMultipath},
		{"upgrade", testUpgrade},
		{"hosts", testHosts},
		{"ambiguous", testAmbiguous},
		{"other sockets", testOthers},
		{"many backends", testManyBackends},
		{"scope", testScope},
		{"detached", testDetached},
		{"remove", testRemove},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, s.in(t)) })
	}
}

// testCalls calls a service in each way that a socket can.
func testCalls(t *testing.T, s *stage) {
	for _, d := range dialects() {
		for _, w := range []struct {
			name     string
			protocol string
			call     func(*testing.T, *stage, dialect, netip.AddrPort)
		}{
			{"tcp", "tcp", callTCP},
			{"connected udp", "udp", callConnected},
			{"unconnected udp", "udp", callUnconnected},
			{"hairpin tcp", "tcp", callSelfTCP},
			{"hairpin udp", "udp", callSelfUDP},
		} {
			t.Run(d.name+"/"+w.name, func(t *testing.T) {
				part := s.in(t)
				w.call(t, part, d, part.serve(d.service, part.echo(w.protocol, d.pod)))
			})
		}
	}
	for name, n := range counts(t, s.Datapath) {
		if len(name) > 5 && name[:5] == "drop_" && n != 0 {
			t.Errorf("%s = %d, want nothing dropped", name, n)
		}
	}
}

// counted fails the test unless exactly this was counted since before.
func (s *stage) counted(before map[string]uint64, want map[string]uint64) {
	s.t.Helper()
	got := delta(s.t, s.Datapath, before)
	for name, n := range want {
		if got[name] != n {
			s.t.Errorf("counted %v, want %v", got, want)
			return
		}
		delete(got, name)
	}
	for _, name := range []string{"from_pod", "to_pod", "passed"} {
		delete(got, name) // neighbours look for each other at any time
	}
	if len(got) > 0 {
		s.t.Errorf("counted %v on top of %v", got, want)
	}
}

func callTCP(t *testing.T, s *stage, d dialect, frontend netip.AddrPort) {
	before := counts(t, s.Datapath)
	c := s.client().open(t, d.v6, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	if c.peer() != frontend {
		t.Errorf("the peer is %s, want the service", c.peer())
	}
	if seen := netip.MustParseAddrPort(c.exchange()); seen.Addr().Unmap() != netip.MustParseAddr(d.client) {
		t.Errorf("the backend saw %s, want %s", seen, d.client)
	}
	s.counted(before, map[string]uint64{"sock_connect": 1, "sock_getpeername": 1})
}

func callConnected(t *testing.T, s *stage, d dialect, frontend netip.AddrPort) {
	before := counts(t, s.Datapath)
	c := s.client().open(t, d.v6, unix.SOCK_DGRAM)
	c.mustConnect(frontend)
	if c.peer() != frontend {
		t.Errorf("the peer is %s, want the service", c.peer())
	}
	for range 3 {
		c.mustSend("x", netip.AddrPort{})
		if text, from := c.receive(); text != "x" || from != frontend {
			t.Errorf("received %q from %s, want it from the service", text, from)
		}
	}
	s.counted(before, map[string]uint64{"sock_connect": 1, "sock_getpeername": 1, "sock_recvmsg": 3})
}

func callUnconnected(t *testing.T, s *stage, d dialect, frontend netip.AddrPort) {
	before := counts(t, s.Datapath)
	c := s.client().open(t, d.v6, unix.SOCK_DGRAM)
	for range 3 {
		c.ask(frontend, frontend)
	}
	s.counted(before, map[string]uint64{"sock_sendmsg": 3, "sock_recvmsg": 3})
}

// callSelfTCP lets the pod that backs the service call it.
func callSelfTCP(t *testing.T, s *stage, d dialect, frontend netip.AddrPort) {
	c := s.server().open(t, d.v6, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	c.exchange()
	if c.peer() != frontend {
		t.Errorf("the peer is %s, want the service", c.peer())
	}
}

func callSelfUDP(t *testing.T, s *stage, d dialect, frontend netip.AddrPort) {
	c := s.server().open(t, d.v6, unix.SOCK_DGRAM)
	c.ask(frontend, frontend)
	c.mustConnect(frontend)
	c.ask(netip.AddrPort{}, frontend)
}
