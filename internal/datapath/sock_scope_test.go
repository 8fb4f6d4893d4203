// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// testScope has a server of its own at the service's address in each namespace: who reaches that was left alone.
func testScope(t *testing.T, s *stage) {
	stranger := testkit.Namespace(t, "stranger")
	s.run(t, `
		-n PODB addr add 10.96.0.100/32 dev lo
		-n `+stranger.Name()+` addr add 10.96.0.100/32 dev lo`)
	service := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	testkit.Echo(t, s.pods[1], "tcp", service.String())
	testkit.Echo(t, stranger, "tcp", service.String())
	below := filepath.Join(s.cgroup, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(below) })
	threaded(t, below)
	beside := testCgroup(t)
	for _, row := range []struct {
		name   string
		at     place
		client string // as the server sees it
	}{
		{"in the cgroup", s.client(), podB4},
		{"in a cgroup below", place{s.pods[1], below}, podB4},
		{"in no cgroup", place{ns: s.pods[1]}, service4},
		{"in another cgroup", place{s.pods[1], beside}, service4},
		{"in another namespace", place{stranger, s.cgroup}, service4},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := row.at.open(t, false, unix.SOCK_STREAM)
			c.mustConnect(service)
			if got := netip.MustParseAddrPort(c.exchange()).Addr().String(); got != row.client {
				t.Errorf("the server saw %s, want %s", got, row.client)
			}
			if c.peer() != service {
				t.Errorf("the peer is %s", c.peer())
			}
		})
	}
}

// testHosts admits and dismisses a namespace.
func testHosts(t *testing.T, s *stage) {
	service := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	translated := func() bool {
		t.Helper()
		before := counts(t, s.Datapath)["sock_connect"]
		s.client().open(t, false, unix.SOCK_DGRAM).mustConnect(service)
		return counts(t, s.Datapath)["sock_connect"] != before
	}
	if !translated() {
		t.Error("an admitted namespace has no service")
	}
	if change, err := s.AddHost(s.pods[1]); err != nil || change != Unchanged {
		t.Errorf("a second AddHost: %v, %v", change, err)
	}
	if hosts, err := s.Hosts(); err != nil || len(hosts) != 2 || hosts[1].Name != s.pods[1].Name() || hosts[0].Name != s.pods[0].Name() {
		t.Errorf("hosts %v, %v", hosts, err)
	}
	if err := s.DeleteHost(s.pods[1]); err != nil {
		t.Error(err)
	}
	if translated() {
		t.Error("a dismissed namespace has the service still")
	}
	wantNotFound(t, s.DeleteHost(s.pods[1]))
	cookie, err := s.pods[0].Cookie()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteHostCookie(cookie); err != nil {
		t.Error(err)
	}
	wantNotFound(t, s.DeleteHostCookie(cookie))
	if hosts, err := s.Hosts(); err != nil || len(hosts) != 0 {
		t.Errorf("hosts %v, %v", hosts, err)
	}
	s.admitBoth()
}

// TestSocketEndpoints has namespaces admitted by their endpoints, and packets' programs at work too.
func TestSocketEndpoints(t *testing.T) {
	s := &stage{network: routed(t), Datapath: openTest(t), t: t, cgroup: testCgroup(t)}
	if _, err := s.AttachSocket(s.cgroup); err != nil {
		t.Fatal(err)
	}
	s.attachBoth(t, s.Datapath)
	if hosts, err := s.Hosts(); err != nil || len(hosts) != 0 {
		t.Errorf("hosts %v, %v; endpoints are none", hosts, err)
	}
	for _, d := range dialects() {
		for protocol, kind := range map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM} {
			t.Run(d.name+"/"+protocol, func(t *testing.T) {
				service := s.serve(d.service, s.echo(protocol, d.pod))
				before := settled(t, s.Datapath)
				c := s.client().open(t, d.v6, kind)
				c.mustConnect(service)
				if protocol == "tcp" {
					c.exchange()
				} else {
					c.ask(netip.AddrPort{}, service)
				}
				got := delta(t, s.Datapath, before)
				if got["sock_connect"] != 1 || got["forward"] != 0 || got["reverse"] != 0 || got["redirect_peer"] == 0 {
					t.Errorf("counted %v, want packets from pod to pod", got)
				}
				// Who is in no cgroup of ours has the packets' programs.
				c = place{ns: s.pods[1]}.open(t, d.v6, kind)
				c.mustConnect(service)
				if got = delta(t, s.Datapath, before); got["sock_connect"] != 1 || protocol == "tcp" && got["forward"] == 0 {
					t.Errorf("counted %v, want packets to be translated", got)
				}
			})
		}
	}
	all, err := s.Endpoints()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if err := s.DeleteEndpointIP(e.IP); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if flags, err := s.admitted(); err != nil || len(flags) != 0 {
		t.Errorf("namespaces %v, %v; want none without endpoints", flags, err)
	}
}

// TestSocketShared keeps a namespace admitted as long as anything is in it.
func TestSocketShared(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	if _, err := d.AddHost(n.pods[0]); err != nil {
		t.Fatal(err)
	}
	cookie, err := n.pods[0].Cookie()
	if err != nil {
		t.Fatal(err)
	}
	want := func(want uint32) {
		t.Helper()
		if all, err := d.admitted(); err != nil || all[cookie] != want {
			t.Errorf("flags %v, %v; want %d for %d", all, err, want, cookie)
		}
	}
	want(namespaceHost | namespacePod)
	second := Endpoint{ID: 99, IP: netip.MustParseAddr("192.168.10.99"), netns: cookie}
	if err := d.putEndpoints([]Endpoint{second}); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteHost(n.pods[0]); err != nil {
		t.Fatal(err)
	}
	want(namespacePod)
	if _, err := d.AddHost(n.pods[0]); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteEndpointIP(netip.MustParseAddr(podA4)); err != nil {
		t.Fatal(err)
	}
	want(namespaceHost | namespacePod)
	if err := d.DeleteEndpoint(second.ID); err != nil {
		t.Fatal(err)
	}
	want(namespaceHost)
}

// testMultipath calls a service by multipath TCP, which falls back to TCP where the kernel has none.
func testMultipath(t *testing.T, s *stage) {
	service := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	before := counts(t, s.Datapath)
	err := s.client().do(t, func() error {
		var dialer net.Dialer
		dialer.SetMultipathTCP(true)
		conn, err := dialer.DialContext(context.Background(), "tcp", service.String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Error(err)
	}
	if got := delta(t, s.Datapath, before); got["sock_connect"] != 1 {
		t.Errorf("counted %v", got)
	}
}
