// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestSocketLoopback adds services at the host's loopback and other addresses: processes of the host reach them, and the
// loopback addresses of pods stay the pods' own.
func TestSocketLoopback(t *testing.T) {
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	must(s.Sockets().Attach(t.Context(), s.cgroup))(t)
	s.attachBoth(t, s.Datapath)
	if change, err := s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope); err != nil || change != Added {
		t.Fatalf("Put: %v, %v", change, err)
	}
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

// hostCalls connects from the host to a service.
func (s *stage) hostCalls(d dialect, kind int, frontend netip.AddrPort) {
	s.t.Helper()
	at := place{s.host, s.cgroup}
	before := counts(s.t, s.Datapath)
	c := at.open(s.t, d.v6, kind)
	c.mustConnect(frontend)
	if c.peer() != frontend {
		s.t.Errorf("the peer is %s, want %s", c.peer(), frontend)
	}
	if kind == unix.SOCK_DGRAM {
		c.ask(netip.AddrPort{}, frontend)
		at.open(s.t, d.v6, kind).ask(frontend, frontend)
	} else {
		c.exchange()
	}
	if got := delta(s.t, s.Datapath, before); got["sock_connect"] != 1 || (got["sock_sendmsg"] != 0) != (kind == unix.SOCK_DGRAM) {
		s.t.Errorf("counted %v", got)
	}
}

// podsKeep connects to the same address in pods, with and without an endpoint, and in one that another owner has as a host,
// and reaches the pods' own servers.
func (s *stage) podsKeep(d dialect, protocol string, frontend netip.AddrPort) {
	s.t.Helper()
	sockets, shared := testkit.Namespace(s.t, "sockets"), testkit.Namespace(s.t, "shared")
	for _, put := range []struct {
		owner service.Owner
		ns    *netns.Namespace
		kind  ScopeKind
	}{{service.CNI, sockets, PodScope}, {service.CNI, shared, PodScope}, {service.CLI, shared, HostScope}} {
		if change, err := s.Sockets().Put(s.t.Context(), put.owner, put.ns, put.kind); err != nil || change != Added {
			s.t.Fatalf("Put: %v, %v", change, err)
		}
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
		if got := delta(s.t, s.Datapath, before); got["sock_connect"]+got["sock_sendmsg"] != 0 {
			s.t.Errorf("counted %v", got)
		}
	}
	if _, err := s.Sockets().Apply(s.t.Context(), service.CNI, nil); err != nil {
		s.t.Error(err)
	}
	for _, ns := range []*netns.Namespace{sockets, shared} {
		wantNotFound(s.t, s.Sockets().Delete(s.t.Context(), service.CNI, cookieOf(s.t, ns)))
	}
}
