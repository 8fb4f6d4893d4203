// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestSocketNodePort has a process of the host connect to a node port at each of the host's addresses, also at one that it got
// later, and to an external address. The loopback addresses are not served.
func TestSocketNodePort(t *testing.T) {
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	must(s.Sockets().Attach(t.Context(), s.cgroup))(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	for _, f := range []struct{ unspecified, backend, own, later, external, loopback string }{
		{"0.0.0.0", podA4, gateway4, "192.0.2.33", "203.0.113.9", "127.0.0.1"},
		{"::", podA6, gateway6, "2001:db8::33", "2001:db8:7::9", "::1"},
	} {
		backend := testkit.Echo(t, s.pods[0], "tcp", net.JoinHostPort(f.backend, "0"))
		put := func(addr string, nodePort bool) {
			t.Helper()
			frontend := netip.AddrPortFrom(netip.MustParseAddr(addr), 30080)
			want := service.Service{Frontend: frontend, Protocol: service.TCP, NodePort: nodePort, External: !nodePort, Backends: service.Backends(backend)}
			must2(s.Services().Put(t.Context(), service.CLI, want))(t)
		}
		connect := func(addr string) error {
			return place{s.host, s.cgroup}.do(t, func() error {
				conn, err := net.Dial("tcp", net.JoinHostPort(addr, "30080"))
				if err == nil {
					_ = conn.Close()
				}
				return err
			})
		}
		put(f.unspecified, true)
		put(f.external, false)
		s.run(t, "-n HOST addr add "+f.later+" dev lo")
		for addr, want := range map[string]error{f.own: nil, f.external: nil, f.loopback: unix.ECONNREFUSED, f.later: unix.ECONNREFUSED} {
			if err := connect(addr); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", addr, err, want)
			}
		}
		put(f.unspecified, true)
		if err := connect(f.later); err != nil {
			t.Errorf("%s, after a command that writes services: %v", f.later, err)
		}
		s.run(t, "-n HOST addr del "+f.later+" dev lo")
	}
}

// TestSocketAnswersNodePort has a process of the host answer another one whose source port is a node port: datagrams of a socket that is
// bound to an address, and of one that is not. Whoever else calls the port has the service.
func TestSocketAnswersNodePort(t *testing.T) {
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	must(s.Sockets().Attach(t.Context(), s.cgroup))(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	for _, f := range []struct{ unspecified, pod, own string }{{"0.0.0.0", podA4, gateway4}, {"::", podA6, gateway6}} {
		backend := testkit.Echo(t, s.pods[0], "udp", net.JoinHostPort(f.pod, "0"))
		frontend := netip.AddrPortFrom(netip.MustParseAddr(f.unspecified), 30080)
		must2(s.Services().Put(t.Context(), service.CLI, service.Service{
			Frontend: frontend, Protocol: service.UDP, NodePort: true, Backends: service.Backends(backend),
		}))(t)
		for _, bound := range []string{f.own, f.unspecified} {
			err := place{s.host, s.cgroup}.do(t, func() error {
				server, err := net.ListenPacket("udp", net.JoinHostPort(bound, "0"))
				if err != nil {
					return err
				}
				defer server.Close()
				to := net.JoinHostPort(f.own, strconv.Itoa(server.LocalAddr().(*net.UDPAddr).Port))
				client, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(f.own), Port: 30080}}).Dial("udp", to)
				if err != nil {
					return err
				}
				defer client.Close()
				deadline := time.Now().Add(20 * time.Second)
				if err := errors.Join(client.SetDeadline(deadline), server.SetDeadline(deadline)); err != nil {
					return err
				}
				if _, err := client.Write([]byte("call")); err != nil {
					return err
				}
				_, peer, err := server.ReadFrom(make([]byte, 10))
				if err != nil {
					return err
				}
				if _, err := server.WriteTo([]byte("answer"), peer); err != nil {
					return err
				}
				if _, err := client.Read(make([]byte, 10)); err != nil {
					return err
				}
				other, err := net.ListenPacket("udp", net.JoinHostPort(f.own, "0"))
				if err != nil {
					return err
				}
				defer other.Close()
				if _, err := other.WriteTo([]byte("call"), peer); err != nil {
					return err
				}
				if err := other.SetDeadline(deadline); err != nil {
					return err
				}
				_, _, err = other.ReadFrom(make([]byte, 10)) // of the backend
				return err
			})
			if err != nil {
				t.Errorf("a server at %s: %v", bound, err)
			}
		}
	}
}
