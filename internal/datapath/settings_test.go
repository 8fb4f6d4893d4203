// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// onlyHere is a service that serves its clients from this node only. Its backend is on a node that does not answer.
func onlyHere(p service.Protocol) service.Service {
	s := newService(p, "10.96.0.100:5201", "172.16.1.3:9")
	s.InternalPolicy = service.Local
	return s
}

// testLocalSockets calls a service that serves its clients from this node only, without a backend there. testSpread
// has one.
func testLocalSockets(t *testing.T, s *stage) {
	want := onlyHere(service.Any)
	putService(t, s.Datapath, want)
	s.refuses(want.Frontend, unix.EHOSTUNREACH, "drop_no_local_backend")
}

// TestLocalSocketOfPod has the socket programs leave a pod without a backend on this node to the packet programs,
// which drop its packets: its connection waits, and is not refused.
func TestLocalSocketOfPod(t *testing.T) {
	s := bareStage(t)
	n, d := s.network, s.Datapath
	n.attachBoth(t, d)
	want := onlyHere(service.TCP)
	putService(t, d, want)
	before, done := counts(t, d), make(chan error, 1)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	go func() { done <- c.connect(want.Frontend) }()
	awaitCount(t, d, before, "drop_no_local_backend")
	want.Backends = append(want.Backends, service.Backend{Addr: testkit.Echo(t, n.pods[0], "tcp", podA4+":0"),
		Local: true})
	putService(t, d, want)
	noError(t, <-done, "connect")
}

func prefixes(texts ...string) (ranges []netip.Prefix) {
	for _, text := range texts {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}

func rangeOf(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// TestManySourceRanges stores thousands of ranges, changes some, and finds each as it was stored.
func TestManySourceRanges(t *testing.T) {
	d := openFresh(t, objects.Sizes{Services: 8, Backends: 3 * service.MaxSourceRanges,
		SourceRanges: 2*service.MaxSourceRanges + 10, Connections: 64, Endpoints: 1})
	s := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	addr := netip.MustParseAddr("20.0.0.0")
	for i := range service.MaxSourceRanges {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(addr, 32-i%2)) // every second one within the one before
		if i%2 == 1 {
			addr = addr.Next().Next()
		}
	}
	for i := range s.SourceRanges {
		s.SourceRanges[i] = s.SourceRanges[i].Masked()
	}
	plain := newService(service.TCP, "10.96.0.2:80", "192.168.10.10:8080")
	fewer := s
	fewer.SourceRanges = s.SourceRanges[:7]
	for _, want := range [][]service.Service{{s, plain}, {fewer, plain}, {s}, {plain}, {fewer}, nil} {
		must(d.Services().Apply(t.Context(), service.CLI, want))(t)
		got := rowsOf(t, d)
		for _, w := range want {
			if have := got[w.Key()]; !have.Equal(w) {
				t.Fatalf("service %s has %d ranges, want %d", w, len(have.SourceRanges), len(w.SourceRanges))
			}
		}
		wantClean(t, d)
	}
}

// tryOnce sends the first packet of a connection, and returns an error if it is answered.
func tryOnce(client *netns.Namespace, s service.Service) error {
	if s.Protocol == service.SCTP && !hasSCTP() {
		return tryPacket(client, s.Frontend)
	}
	kind := socketKind{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, 0}
	if s.Frontend.Addr().Is6() {
		kind.domain = unix.AF_INET6
	}
	switch s.Protocol {
	case service.UDP:
		kind.kind = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK
	case service.SCTP:
		kind.proto = unix.IPPROTO_SCTP
	}
	return kind.with(client, func(fd int) error {
		if err := unix.Connect(fd, sockaddr(s.Frontend)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if s.Protocol == service.UDP {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				return err
			}
		}
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLERR}}
		if n, err := unix.Poll(polled, 100); n != 0 && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("it was answered: events %#x", polled[0].Revents)
		}
		return nil
	})
}

// testRangedSockets calls a service with source ranges from hosts, which it serves, and from pods without endpoint,
// whose sockets it serves if they are bound to an address within.
func testRangedSockets(t *testing.T, s *stage) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			s := s.in(t)
			want := service.Service{
				Frontend: netip.MustParseAddrPort(d.service), Protocol: service.Any,
				SourceRanges: []netip.Prefix{rangeOf(netip.MustParseAddr(d.client))},
				Backends:     service.Backends(s.echo("udp", d.pod)),
			}
			register := func(kind ScopeKind) {
				t.Helper()
				must(s.Sockets().Put(t.Context(), service.CLI, s.pods[1], kind))(t)
			}
			call := func(bind bool) error {
				c := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				if bind {
					succeed(t, unix.Bind(c.fd, c.addr(netip.AddrPortFrom(netip.MustParseAddr(d.client), 0))))
				}
				if err := c.send("unconnected", want.Frontend); err != nil {
					return err
				}
				return c.connect(want.Frontend)
			}
			putService(t, s.Datapath, want)
			noError(t, call(false), "a host")
			register(PodScope)
			defer register(HostScope)
			noError(t, call(true), "a pod, bound to an address within")
			before := counts(t, s.Datapath)
			failsWith(t, call(false), unix.EPERM, "a pod, not bound")
			want.SourceRanges = []netip.Prefix{rangeOf(netip.MustParseAddr(d.pod))}
			putService(t, s.Datapath, want)
			failsWith(t, call(true), unix.EPERM, "a pod, bound to an address without")
			equal(t, delta(t, s.Datapath, before)["drop_source_range"], 2, "drop_source_range")
		})
	}
}
