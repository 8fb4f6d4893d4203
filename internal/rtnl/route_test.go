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
	testkit.Eventually(t, time.Second, func() error { // a moment later the route shows it
		return a.Do(func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			if err == nil && !slices.ContainsFunc(routes,
				func(r netlink.Route) bool { return r.Flags&unix.RTNH_F_LINKDOWN != 0 }) {
				err = errors.New("no route without carrier")
			}
			return err
		})
	})
	testkit.Succeed(t, rtnl.In(a).SetCongestion("reno"))
	set(true)
	got := congestionTo(t, a, testkit.Echo(t, b, "tcp", "10.0.0.2:0"))
	testkit.Check(t, got == "reno", "the connection uses %q", got)
}

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
	testkit.Succeed(t, err)
	return name
}

// TestWatch expects a notice of a device, an address, a route, and a device that goes down.
func TestWatch(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := testkit.Must(rtnl.In(a).Watch(ctx))(t)
	steps := []struct {
		what   string
		change func() error
	}{
		{"a device", func() error {
			return rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "eth0"}, rtnl.VethEnd{Namespace: b, Name: "eth0"}, 1500)
		}},
		{"an address", func() error {
			return rtnl.In(a).Configure("eth0",
				rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Up: true})
		}},
		{"a route", func() error {
			return rtnl.In(a).AddRoute(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddr("192.0.2.2"))
		}},
		{"a device that is down", func() error { return rtnl.In(a).SetUp("eth0", false) }},
	}
	for _, step := range steps {
		for quiet := false; !quiet; { // late results of the step before, such as a link-local address
			select {
			case <-changed:
			case <-time.After(3 * time.Second):
				quiet = true
			}
		}
		testkit.Succeed(t, step.change())
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Errorf("%s: not told", step.what)
		}
	}
}
