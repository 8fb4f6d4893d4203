// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// testReuse sends from one datagram socket to a service and to its backend in turn, connected and not.
func testReuse(t *testing.T, s *stage) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			backend := s.echo("udp", d.pod)
			frontend := s.serve(d.service, backend)
			none := netip.AddrPort{}
			c := s.client().open(t, d.v6, unix.SOCK_DGRAM)
			c.ask(frontend, frontend)
			c.ask(backend, backend) // directly, after the service
			c.ask(frontend, frontend)
			c.mustConnect(frontend)
			c.ask(none, frontend)
			c.ask(frontend, frontend)
			c.mustConnect(backend) // directly
			if c.peer() != backend {
				t.Errorf("the peer is %s, want the backend that was named", c.peer())
			}
			c.ask(none, backend)
			c.mustConnect(frontend)
			c.disconnect()
			c.ask(backend, backend)
			c.ask(frontend, frontend)
		})
	}
}

// testAmbiguous sends from one socket to two services that share backends.
func testAmbiguous(t *testing.T, s *stage) {
	first, second := s.echo("udp", podA4), s.echo("udp", podA4)
	t.Run("another backend is free", func(t *testing.T) {
		a := s.serve("10.96.0.100:5201", first, second)
		b := s.serve("10.96.0.101:5201", first, second)
		for range 8 {
			c := s.client().open(t, false, unix.SOCK_DGRAM)
			c.mustSend("a", a)
			c.mustSend("b", b)
			c.mustSend("a", a)
			got := make(map[string]netip.AddrPort)
			for range 3 {
				text, from := c.receive()
				got[text] = from
			}
			if got["a"] != a || got["b"] != b {
				t.Fatalf("answers came from %v", got)
			}
		}
	})
	t.Run("no other backend", func(t *testing.T) {
		a := s.serve("10.96.0.100:5201", first)
		b := s.serve("10.96.0.101:5201", first)
		c := s.client().open(t, false, unix.SOCK_DGRAM)
		c.ask(a, a)
		c.ask(b, b) // replies have the address of the service that was used last
		c.ask(a, a)
	})
	t.Run("no other backend, with packet programs", func(t *testing.T) {
		s.attachBoth(t, s.Datapath)
		a := s.serve("10.96.0.100:5201", first)
		b := s.serve("10.96.0.101:5201", first)
		c := s.client().open(t, false, unix.SOCK_DGRAM)
		c.ask(a, a)
		c.ask(b, b)
		c.mustSend("a", a)
		c.mustSend("b", b)
		c.mustSend("a", a)
		for range 3 {
			if text, from := c.receive(); text == "a" && from != a || text == "b" && from != b {
				t.Errorf("%q came from %s", text, from)
			}
		}
	})
}

// testOthers floods a service by many sockets while the answer to one waits.
func testOthers(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("udp", podA4))
	c := s.client().open(t, false, unix.SOCK_DGRAM)
	c.mustSend("a", frontend)
	// More than a map of openTest has rows.
	for range 5 {
		for _, other := range s.client().openAll(t, make([]*socketFD, 1000), false, unix.SOCK_DGRAM) {
			other.mustSend("b", frontend)
			other.close()
		}
	}
	if text, from := c.receive(); text != "a" || from != frontend {
		t.Errorf("%q came from %s, want the answer of %s", text, from, frontend)
	}
}

// testManyBackends sends from one socket to more backends than are kept with it.
func testManyBackends(t *testing.T, s *stage) {
	var frontends []netip.AddrPort
	c := s.client().open(t, false, unix.SOCK_DGRAM)
	for port := range uint16(12) {
		frontend := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.100"), 5201+port)
		frontends = append(frontends, s.serve(frontend.String(), s.echo("udp", podA4)))
		c.mustSend(frontend.String(), frontend)
	}
	for range frontends {
		if text, from := c.receive(); text != from.String() {
			t.Errorf("the answer of %s came from %s", text, from)
		}
	}
	c.ask(frontends[0], frontends[0])
}
