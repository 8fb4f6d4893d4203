// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestUpgradeUplinkAndSockets upgrades a datapath of layout 6 with an uplink and a control group, after attempts that were
// killed. A connection from outside, and sockets that called the service, go on; a UDP socket ends with its backend.
func TestUpgradeUplinkAndSockets(t *testing.T) {
	n, d := routed(t), openTest(t)
	far := n.wire(t)
	n.attachBoth(t, d)
	if _, err := d.Uplinks().Put(t.Context(), n.host, "wire"); err != nil {
		t.Fatal(err)
	}
	s := &stage{network: n, Datapath: d, t: t, cgroup: testCgroup(t)}
	if _, err := d.Sockets().Attach(t.Context(), s.cgroup); err != nil {
		t.Fatal(err)
	}
	backend := testkit.Echo(t, n.pods[0], "tcp", podA4+":8080")
	testkit.Echo(t, n.pods[0], "udp", podA4+":8080")
	want := service.Service{Frontend: netip.MustParseAddrPort(service4 + ":80"), Protocol: service.Any, Backends: service.Backends(backend)}
	if _, _, err := d.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	outside, err := testkit.Dial(far, "tcp", service4+":80")
	if err != nil {
		t.Fatal(err)
	}
	conns := []net.Conn{outside, s.dial(t, "tcp"), s.dial(t, "udp")}
	for _, conn := range conns {
		defer conn.Close()
		exchange(t, conn)
	}
	root := filepath.Join(filepath.Dir(d.objects.Root()), "old") // links move within a file system only
	if err := os.MkdirAll(filepath.Join(root, "v6", "socks"), 0o700); err != nil {
		t.Fatal(err)
	}
	makeLayout6(t, n, d, root)
	if err := objects.Remove(t.Context(), d.objects.Root()); err != nil {
		t.Fatal(err)
	}
	for _, ms := range []int{15, 30, 50, 80, 120} {
		killUpgrade(t, root, time.Duration(ms)*time.Millisecond)
	}
	if _, err := Upgrade(t.Context(), Options{Root: root}); err != nil {
		t.Fatal(err)
	}
	s.Datapath = checkUpgraded(t, root, want, 4+len(objects.AttachUplink.Hooks())+len(objects.AttachCgroup.Hooks()))
	for _, conn := range conns {
		exchange(t, conn)
	}
	before := counts(t, s.Datapath)
	again := s.dial(t, "tcp")
	defer again.Close()
	exchange(t, again)
	if _, err := testkit.RoundTrip(t, far, "tcp", service4+":80", []byte("new")); err != nil {
		t.Errorf("a new connection from outside: %v", err)
	}
	if got := delta(t, s.Datapath, before); got["sock_connect"] != 1 || got["new_connection"] != 1 {
		t.Errorf("counted %v", got)
	}
	s.checkLife(t, want, conns[2])
}

// checkLife checks an upgraded uplink, and that a UDP socket that was connected before the upgrade ends with its backend.
func (s *stage) checkLife(t *testing.T, want service.Service, conn net.Conn) {
	t.Helper()
	uplink, err := s.Uplinks().Get(t.Context(), s.host, "wire")
	if err != nil {
		t.Fatal(err)
	}
	if source, err := s.Uplinks().Source(uplink); err != nil || len(source) != 2 {
		t.Errorf("addresses of the uplink: %v, %v", source, err)
	}
	if got := conn.RemoteAddr().String(); got != want.Frontend.String() {
		t.Errorf("the socket is connected to %s, want %s", got, want.Frontend)
	}
	want.Backends = nil
	if _, _, err := s.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("the socket without a backend: %v, want ECONNABORTED", err)
	}
}

// dial connects a socket to the service, with socket translation.
func (s *stage) dial(t *testing.T, network string) (conn net.Conn) {
	t.Helper()
	if err := s.client().do(t, func() (err error) {
		conn, err = net.DialTimeout(network, service4+":80", 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return conn
}
