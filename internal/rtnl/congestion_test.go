// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestSetCongestion connects along a route of each family and reads what the sockets use.
func TestSetCongestion(t *testing.T) {
	a, b := testkit.VethPair(t)
	for _, ns := range []*netns.Namespace{a, b} {
		for _, name := range []string{"reno", "cubic", "cubic"} { // the last one wins
			if err := rtnl.In(ns).SetCongestion(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rtnl.In(a).SetCongestion("none-such"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a congestion control that does not exist: %v", err)
	}
	for _, addr := range []string{"10.0.0.2:0", "[fd00:1::2]:0"} {
		server := testkit.Echo(t, b, "tcp", addr)
		if got := congestionTo(t, a, server); got != "cubic" {
			t.Errorf("connection to %v uses %q", server, got)
		}
	}
}

// TestSetCongestionWithoutCarrier sets it on the route of a device whose peer is down, and uses
// the route when the peer is up again.
func TestSetCongestionWithoutCarrier(t *testing.T) {
	a, b := testkit.VethPair(t)
	set := func(up bool) {
		t.Helper()
		if err := b.Do(func() error {
			right, err := netlink.LinkByName("right")
			if err != nil {
				return err
			}
			if up {
				return netlink.LinkSetUp(right)
			}
			return netlink.LinkSetDown(right)
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(false)
	testkit.Eventually(t, time.Second, func() error { // a moment later the route says so
		return a.Do(func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			if err == nil && !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Flags&unix.RTNH_F_LINKDOWN != 0 }) {
				err = errors.New("no route without carrier")
			}
			return err
		})
	})
	if err := rtnl.In(a).SetCongestion("reno"); err != nil {
		t.Fatal(err)
	}
	set(true)
	if got := congestionTo(t, a, testkit.Echo(t, b, "tcp", "10.0.0.2:0")); got != "reno" {
		t.Errorf("the connection uses %q", got)
	}
}

// congestionTo returns the congestion control of a connection.
func congestionTo(t *testing.T, from *netns.Namespace, to netip.AddrPort) (name string) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var optErr error
		err = raw.Control(func(fd uintptr) {
			name, optErr = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		})
		if err == nil {
			err = optErr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}
