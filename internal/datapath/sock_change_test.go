// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testSpread calls a service from many sockets, and counts how many each backend gets.
func testSpread(t *testing.T, s *stage) {
	servers := listenUDP(t, s.pods[0], podA4, 4)
	for name, c := range map[string]struct {
		change func(*service.Service)
		right  func(got []int) bool
	}{
		"shares": {func(*service.Service) {}, func(got []int) bool { // the mean is 25, the standard deviation 4
			return slices.Min(got) >= 5 && slices.Max(got) <= 50
		}},
		"weights and states": {func(s *service.Service) {
			s.Backends[0].Weight, s.Backends[1].Weight = 1, 4
			s.Backends[2].State, s.Backends[3].State = service.Draining, service.Terminating
		}, func(got []int) bool { // the mean is 20, the standard deviation 4
			return got[0] >= 3 && got[0] <= 45 && got[0]+got[1] == spreadSockets
		}},
		"affinity": {func(s *service.Service) { s.Affinity = time.Hour }, func(got []int) bool {
			return slices.Max(got) == spreadSockets
		}},
		"backends on this node only": {func(s *service.Service) {
			s.InternalPolicy, s.Backends[3].Local = service.Local, true
		}, func(got []int) bool {
			return got[3] == spreadSockets
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := service.Service{Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.Any}
			for _, server := range servers {
				want.Backends = append(want.Backends, service.Backend{Addr: server.addr})
			}
			c.change(&want)
			putService(t, s.Datapath, want)
			for _, connected := range []bool{true, false} {
				got := s.spread(t, servers, want.Frontend, connected)
				testkit.Check(t, c.right(got), "connected %t: of %d sockets, backends got %v", connected, spreadSockets, got)
			}
		})
	}
}

const spreadSockets = 100 // small enough for one server to receive all their datagrams

// spread has sockets send two datagrams each to a service, and returns how many sockets each server got.
func (s *stage) spread(t *testing.T, servers []*counter, frontend netip.AddrPort, connected bool) (got []int) {
	t.Helper()
	for i, c := range s.client().openAll(t, make([]*socketFD, spreadSockets), false, unix.SOCK_DGRAM) {
		to := frontend
		if connected {
			c.mustConnect(to)
			to = netip.AddrPort{}
		}
		for range 2 {
			c.mustSend(string(rune('a'+i)), to)
		}
	}
	texts, total := make([][]string, len(servers)), 0
	testkit.Eventually(t, time.Minute, func() error {
		for i, server := range servers {
			more := server.received(t, 0)
			texts[i], total = append(texts[i], more...), total+len(more)
		}
		if total < 2*spreadSockets {
			return fmt.Errorf("%d of %d datagrams", total, 2*spreadSockets)
		}
		return nil
	})
	for i := range servers {
		times := make(map[string]int)
		for _, text := range texts[i] {
			times[text]++
		}
		for text, n := range times {
			equal(t, n, 2, "datagrams of socket %q at backend %d", text, i)
		}
		got = append(got, len(times))
	}
	return got
}

// refuses fails the test unless a service refuses all sockets, by an error, which is counted.
func (s *stage) refuses(frontend netip.AddrPort, want error, count string) {
	s.t.Helper()
	before := counts(s.t, s.Datapath)
	for _, v6 := range []bool{false, true} {
		failsWith(s.t, s.client().open(s.t, v6, unix.SOCK_STREAM).connect(frontend), want, "tcp")
		failsWith(s.t, s.client().open(s.t, v6, unix.SOCK_DGRAM).connect(frontend), want, "connected udp")
		failsWith(s.t, s.client().open(s.t, v6, unix.SOCK_DGRAM).send("x", frontend), want, "unconnected udp")
	}
	s.counted(before, map[string]uint64{count: 6})
}

// testChanges changes and deletes a service while sockets use it.
func testChanges(t *testing.T, whole *stage) {
	for _, change := range []struct {
		name string
		do   func(s *stage, frontend, old, other netip.AddrPort)
		ends bool // the change destroys connected UDP sockets
		left bool // the service still exists
	}{
		{"replaced backend", func(s *stage, frontend, _, other netip.AddrPort) { s.serve(frontend.String(), other) },
			true, true},
		{"removed service", func(s *stage, frontend, _, _ netip.AddrPort) {
			succeed(s.t, s.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend, Protocol: service.Any}))
		}, true, false},
		{"added backend", func(s *stage, frontend, old, other netip.AddrPort) { s.serve(frontend.String(), other, old) },
			false, true},
	} {
		for _, d := range dialects() {
			t.Run(change.name+"/"+d.name, func(t *testing.T) {
				s := whole.in(t)
				before := counts(t, s.Datapath)
				old := s.echo("udp", d.pod)
				other := testkit.Echo(t, s.pods[1], "udp", net.JoinHostPort(d.client, "0"))
				frontend := s.serve(d.service, old)
				connected := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				connected.mustConnect(frontend)
				connected.ask(netip.AddrPort{}, frontend)
				direct := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				direct.mustConnect(old)
				loose := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				loose.mustConnect(frontend)
				loose.disconnect()
				loose.ask(old, old)
				change.do(s, frontend, old, other)
				direct.ask(netip.AddrPort{}, old)
				loose.ask(old, old)
				if !change.ends {
					connected.ask(netip.AddrPort{}, frontend)
					return
				}
				failsWith(t, errOf(connected.read(make([]byte, 1))), unix.ECONNABORTED, "a socket whose backend is gone receives")
				failsWith(t, connected.send("x", netip.AddrPort{}), unix.EDESTADDRREQ, "a socket whose backend is gone sends")
				equal(t, delta(t, s.Datapath, before)["sock_destroy"], 1, "sock_destroy")
				if change.left {
					connected.mustConnect(frontend)
					connected.ask(netip.AddrPort{}, frontend)
				}
			})
		}
	}
}

// testFollows changes a service: an unconnected UDP socket sends to the new backend, a TCP connection keeps its own.
func testFollows(t *testing.T, s *stage) {
	servers := listenUDP(t, s.pods[0], podA4, 2)
	frontend := s.serve("10.96.0.100:5201", servers[0].addr)
	c := s.client().open(t, false, unix.SOCK_DGRAM)
	c.mustSend("first", frontend)
	s.serve(frontend.String(), servers[1].addr)
	c.mustSend("second", frontend)
	for i, want := range []string{"first", "second"} {
		got := servers[i].received(t, 1)
		testkit.Check(t, len(got) == 1 && got[0] == want, "server %d got %q, want %q", i, got, want)
	}
	s.serve(frontend.String(), s.echo("tcp", podA4))
	stream := s.client().open(t, false, unix.SOCK_STREAM)
	stream.mustConnect(frontend)
	stream.exchange()
	succeed(t, s.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend, Protocol: service.Any}))
	stream.mustSend("more", netip.AddrPort{})
	text, _ := stream.receive()
	equal(t, text, "more", "read from a connection whose service has ended")
	equal(t, stream.peer(), frontend, "the peer")
}

// testRefused connects to services without a usable backend.
func testRefused(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	for _, row := range []struct {
		name, count string
		spoil       func(*objects.Service)
	}{
		{"missing backend", "drop_backend_missing", func(s *objects.Service) {
			s.Revision, s.FirstPort = s.Revision+100, [objects.FirstBackends]uint16{}
		}},
		{"no backend", "drop_no_backend", func(s *objects.Service) { s.Count, s.Total = 0, 0 }},
	} {
		t.Run(row.name, func(t *testing.T) {
			key := rows.ServiceKey(frontend, service.Any)
			value, ok, err := s.objects.Services.Get(key)
			testkit.Require(t, err == nil && ok, "%v, %v", ok, err)
			row.spoil(&value)
			succeed(t, s.objects.Services.Put(key, value))
			s.in(t).refuses(frontend, unix.ECONNREFUSED, row.count)
		})
	}
}

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
			equal(t, c.peer(), backend, "the peer")
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
			testkit.Require(t, got["a"] == a && got["b"] == b, "answers came from %v", got)
		}
	})
	a := s.serve("10.96.0.100:5201", first)
	b := s.serve("10.96.0.101:5201", first)
	t.Run("no other backend", func(t *testing.T) {
		c := s.client().open(t, false, unix.SOCK_DGRAM)
		c.ask(a, a)
		c.ask(b, b) // replies have the address of the service that was used last
		c.ask(a, a)
	})
	t.Run("no other backend, with packet programs", func(t *testing.T) {
		s.attachBoth(t, s.Datapath)
		c := s.client().open(t, false, unix.SOCK_DGRAM)
		c.ask(a, a)
		c.ask(b, b)
		c.mustSend("a", a)
		c.mustSend("b", b)
		c.mustSend("a", a)
		for range 3 {
			text, from := c.receive()
			testkit.Check(t, (text != "a" || from == a) && (text != "b" || from == b), "%q came from %s", text, from)
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
	text, from := c.receive()
	testkit.Check(t, text == "a" && from == frontend, "%q came from %s, want the answer of %s", text, from, frontend)
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
		text, from := c.receive()
		testkit.Check(t, text == from.String(), "the answer of %s came from %s", text, from)
	}
	c.ask(frontends[0], frontends[0])
}

// TestSocketLoopback adds services at the host's loopback and other addresses: processes of the host reach them, and
// the loopback addresses of pods stay the pods' own.
func TestSocketLoopback(t *testing.T) {
	s := bareStage(t)
	s.attachBoth(t, s.Datapath)
	equal(t, must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t), Added, "Put")
	for _, d := range []dialect{
		{"ipv4", false, "127.0.0.1:5201", podA4, "127.0.0.1"},
		{"ipv6", true, "[::1]:5201", podA6, "::1"},
		{"mapped", true, "127.0.0.1:5201", podA4, "127.0.0.1"},
		{"own ipv4", false, gateway4 + ":5201", podA4, ""},
		{"own ipv6", true, "[" + gateway6 + "]:5201", podA6, ""},
	} {
		for protocol, kind := range map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM} {
			t.Run(d.name+"/"+protocol, func(t *testing.T) {
				part := s.in(t)
				frontend := part.serve(d.service, part.echo(protocol, d.pod))
				part.hostCalls(d, kind, frontend)
				if d.client != "" {
					part.podsKeep(d, protocol, frontend)
				}
			})
		}
	}
}

func (s *stage) hostCalls(d dialect, kind int, frontend netip.AddrPort) {
	s.t.Helper()
	at := place{s.host, s.cgroup}
	before := counts(s.t, s.Datapath)
	c := at.open(s.t, d.v6, kind)
	c.mustConnect(frontend)
	failIf(s.t, c.peer() != frontend, "the peer is %s, want %s", c.peer(), frontend)
	if kind == unix.SOCK_DGRAM {
		c.ask(netip.AddrPort{}, frontend)
		at.open(s.t, d.v6, kind).ask(frontend, frontend)
	} else {
		c.exchange()
	}
	got := delta(s.t, s.Datapath, before)
	failIf(s.t, got["sock_connect"] != 1 || (got["sock_sendmsg"] != 0) != (kind == unix.SOCK_DGRAM), "counted %v", got)
}

// podsKeep connects to the same address in pods, with and without an endpoint, and in a pod that another owner has
// registered as a host. It reaches the pods' own servers.
func (s *stage) podsKeep(d dialect, protocol string, frontend netip.AddrPort) {
	s.t.Helper()
	sockets, shared := testkit.Namespace(s.t, "sockets"), testkit.Namespace(s.t, "shared")
	for _, put := range []struct {
		owner service.Owner
		ns    *netns.Namespace
		kind  ScopeKind
	}{{service.CNI, sockets, PodScope}, {service.CNI, shared, PodScope}, {service.CLI, shared, HostScope}} {
		change, err := s.Sockets().Put(s.t.Context(), put.owner, put.ns, put.kind)
		testkit.Require(s.t, err == nil && change == Added, "Put: %v, %v", change, err)
	}
	kind := map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM}[protocol]
	for _, at := range []place{s.client(), {sockets, s.cgroup}, {shared, s.cgroup}} {
		testkit.Echo(s.t, at.ns, protocol, frontend.String())
		before := counts(s.t, s.Datapath)
		c := at.open(s.t, d.v6, kind)
		c.mustConnect(frontend)
		if kind == unix.SOCK_DGRAM {
			c.ask(netip.AddrPort{}, frontend)
			at.open(s.t, d.v6, kind).ask(frontend, frontend)
		} else if seen := netip.MustParseAddrPort(c.exchange()).Addr().Unmap().String(); seen != d.client {
			s.t.Errorf("the server saw %s, want %s", seen, d.client)
		}
		got := delta(s.t, s.Datapath, before)
		testkit.Check(s.t, got["sock_connect"]+got["sock_sendmsg"] == 0, "counted %v", got)
	}
	noError(s.t, s.Sockets().DeleteAll(s.t.Context(), service.CNI))
	for _, ns := range []*netns.Namespace{sockets, shared} {
		wantNotFound(s.t, s.Sockets().Delete(s.t.Context(), service.CNI, cookieOf(s.t, ns)))
	}
}
