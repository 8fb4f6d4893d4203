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

// TestAddProxy has a host answer for the address of another one behind it, until
// its device is set down.
func TestAddProxy(t *testing.T) {
	a, b := testkit.VethPair(t)
	c := testkit.Namespace(t, "c")
	behind := netip.MustParseAddr("10.0.0.9")
	testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: b, Name: "down"}, rtnl.VethEnd{Namespace: c,
		Name: "eth0"}, 1500))
	testkit.Succeed(t, rtnl.In(b).Configure("down", rtnl.DeviceConfig{Addresses: []netip.Prefix{underlay("10.0.9.1/24")},
		Up: true}))
	addrs := []netip.Prefix{underlay("10.0.9.2/24"), underlay("10.0.0.9/32")}
	testkit.Succeed(t, rtnl.In(c).Configure("eth0", rtnl.DeviceConfig{Addresses: addrs, Up: true}))
	testkit.Succeed(t, rtnl.In(b).AddRoute(netip.PrefixFrom(behind, 32), netip.MustParseAddr("10.0.9.2")))
	testkit.Succeed(t, rtnl.In(c).AddRoute(underlay("10.0.0.0/24"), netip.MustParseAddr("10.0.9.1")))
	testkit.Succeed(t, rtnl.In(b).SetSysctl("net/ipv4/ip_forward", "1"))
	for range 2 { // a second entry is no error
		testkit.Succeed(t, rtnl.In(b).AddProxyNeighbor("right", behind))
	}
	testkit.Succeed(t, testkit.Ping(a, behind, 8))
	for _, up := range []bool{false, true} {
		testkit.Succeed(t, rtnl.In(b).SetUp("right", up))
		device, err := rtnl.In(b).Device("right")
		if err != nil || device.Up != up || len(device.Addrs) == 0 || device.Addrs[0] != underlay("10.0.0.2/24") {
			t.Errorf("set up %t: %+v, %v", up, device, err)
		}
	}
	testkit.Succeed(t, testkit.Ping(a, netip.MustParseAddr("10.0.0.2"), 8))
	testkit.Fails(t, rtnl.In(b).AddProxyNeighbor("right", netip.MustParseAddr("fd00:1::9")))
	testkit.Fails(t, rtnl.In(b).AddProxyNeighbor("nope", behind))
	testkit.Fails(t, rtnl.In(b).SetUp("nope", true))
}

func underlay(prefix string) netip.Prefix { return netip.MustParsePrefix(prefix) }

// TestAddRoute reaches addresses behind a next hop.
func TestAddRoute(t *testing.T) {
	a, b := testkit.VethPair(t)
	far := []netip.Prefix{underlay("192.168.11.11/32"), underlay("fd00:11::b/128")}
	testkit.Succeed(t, rtnl.In(b).Configure("lo", rtnl.DeviceConfig{Addresses: far}))
	hops := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00:1::2")}
	for i, dst := range []netip.Prefix{underlay("192.168.11.99/24"), underlay("fd00:11::/64")} {
		testkit.Succeed(t, rtnl.In(a).AddRoute(dst, hops[i]))
		// A new IPv6 address receives a moment after it is there.
		testkit.Eventually(t, 10*time.Second, func() error { return testkit.Ping(a, far[i].Addr(), 8) })
		testkit.Fails(t, rtnl.In(a).AddRoute(dst, hops[i]))
	}
	testkit.Fails(t, rtnl.In(a).AddRoute(underlay("192.168.12.0/24"), netip.MustParseAddr("172.16.0.1")))
}

// TestFinishPackets reads what the other end of a wire is given, which is whole
// packets with their checksums.
func TestFinishPackets(t *testing.T) {
	a, b := testkit.VethPair(t)
	testkit.Succeed(t, rtnl.In(a).DisableOffloads("left"))
	on, err := rtnl.In(a).Offloads("left")
	if err != nil || on["tso"] || on["tx-checksum"] {
		t.Errorf("offloads are %v, %v", on, err)
	}
	server := testkit.Echo(t, b, "tcp", "[fd00:1::2]:0")
	testkit.Must(testkit.RoundTrip(t, a, "tcp", server.String(), make([]byte, 1<<18)))(t)
	testkit.Fails(t, rtnl.In(a).DisableOffloads("none"))
}

// TestSetCongestion connects along a route of each family and reads what the sockets use.
func TestSetCongestion(t *testing.T) {
	a, b := testkit.VethPair(t)
	for _, ns := range []*netns.Namespace{a, b} {
		for _, name := range []string{"reno", "cubic", "cubic"} { // the last one wins
			testkit.Succeed(t, rtnl.In(ns).SetCongestion(name))
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
			if err == nil && !slices.ContainsFunc(routes,
				func(r netlink.Route) bool { return r.Flags&unix.RTNH_F_LINKDOWN != 0 }) {
				err = errors.New("no route without carrier")
			}
			return err
		})
	})
	testkit.Succeed(t, rtnl.In(a).SetCongestion("reno"))
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
	testkit.Succeed(t, err)
	return name
}

// TestWatch is told of a device, an address, a route, and of a device that goes down.
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
		for quiet := false; !quiet; { // what comes later of the step before, such as a link-local address
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

// TestPacketsAboveTheDevicesLimitChangeNothing asks a veth device and a bridge for packets of BIG TCP. A bridge without
// ports refuses them, and stays down.
func TestPacketsAboveTheDevicesLimitChangeNothing(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "a")
	handle := testkit.Must(rtnl.In(ns).Handle())(t)
	defer handle.Close()
	for _, test := range []struct {
		kind  string
		takes bool
	}{{"veth", true}, {"bridge", false}} {
		link := &netlink.GenericLink{LinkAttrs: netlink.NewLinkAttrs(), LinkType: test.kind}
		link.Name = "own-" + test.kind
		testkit.Succeed(t, handle.LinkAdd(link))
		err := rtnl.SetUpWithPackets(handle, link, rtnl.BigTCPBytes)
		if (err == nil) != test.takes {
			t.Errorf("%s: %v", test.kind, err)
		}
		found := testkit.Must(handle.LinkByName(link.Name))(t)
		a, up := found.Attrs(), found.Attrs().RawFlags&unix.IFF_UP != 0
		for _, limit := range []uint32{a.GSOIPv4MaxSize, a.GROIPv4MaxSize} {
			if (limit == rtnl.BigTCPBytes) != test.takes {
				t.Errorf("%s: a limit is %d", test.kind, limit)
			}
		}
		if up != test.takes {
			t.Errorf("%s: up is %t", test.kind, up)
		}
	}
}

// TestPacketsReachTheKernel asks for packets of BIG TCP on missing devices of all kinds: the kernel refuses it, not the
// library.
func TestPacketsReachTheKernel(t *testing.T) {
	handle := testkit.Must(netlink.NewHandle(unix.NETLINK_ROUTE))(t)
	defer handle.Close()
	for _, kind := range []string{"veth", "netkit", "bridge", "macvlan", "ipvlan"} {
		link := &netlink.GenericLink{LinkAttrs: netlink.NewLinkAttrs(), LinkType: kind}
		link.Name, link.Index = "missing", 1<<30
		err := rtnl.SetUpWithPackets(handle, link, rtnl.BigTCPBytes)
		if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: error %v, want the kernel's", kind, err)
		}
	}
}
