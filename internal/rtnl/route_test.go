// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"net/netip"
	"testing"
	"time"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestAddProxy has a host answer for the address of another one behind it, until
// its device is set down.
func TestAddProxy(t *testing.T) {
	a, b := testkit.VethPair(t)
	c := testkit.Namespace(t, "c")
	behind := netip.MustParseAddr("10.0.0.9")
	if err := rtnl.AddVeth(rtnl.VethEnd{Namespace: b, Name: "down"}, rtnl.VethEnd{Namespace: c, Name: "eth0"}, 1500); err != nil {
		t.Fatal(err)
	}
	if err := rtnl.In(b).Configure("down", rtnl.DeviceConfig{Addresses: []netip.Prefix{underlay("10.0.9.1/24")}, Up: true}); err != nil {
		t.Fatal(err)
	}
	if err := rtnl.In(c).Configure("eth0", rtnl.DeviceConfig{Addresses: []netip.Prefix{underlay("10.0.9.2/24"), underlay("10.0.0.9/32")}, Up: true}); err != nil {
		t.Fatal(err)
	}
	if err := rtnl.In(b).AddRoute(netip.PrefixFrom(behind, 32), netip.MustParseAddr("10.0.9.2")); err != nil {
		t.Fatal(err)
	}
	if err := rtnl.In(c).AddRoute(underlay("10.0.0.0/24"), netip.MustParseAddr("10.0.9.1")); err != nil {
		t.Fatal(err)
	}
	if err := rtnl.In(b).SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second entry is no error
		if err := rtnl.In(b).AddProxyNeighbor("right", behind); err != nil {
			t.Fatal(err)
		}
	}
	if err := testkit.Ping(a, behind, 8); err != nil {
		t.Error(err)
	}
	for _, up := range []bool{false, true} {
		if err := rtnl.In(b).SetUp("right", up); err != nil {
			t.Fatal(err)
		}
		device, err := rtnl.In(b).Device("right")
		if err != nil || device.Up != up || len(device.Addrs) == 0 || device.Addrs[0] != underlay("10.0.0.2/24") {
			t.Errorf("set up %t: %+v, %v", up, device, err)
		}
	}
	if err := testkit.Ping(a, netip.MustParseAddr("10.0.0.2"), 8); err != nil {
		t.Error(err)
	}
	if err := rtnl.In(b).AddProxyNeighbor("right", netip.MustParseAddr("fd00:1::9")); err == nil {
		t.Error("answers for an IPv6 address")
	}
	if err := rtnl.In(b).AddProxyNeighbor("nope", behind); err == nil {
		t.Error("answers at a device that there is not")
	}
	if err := rtnl.In(b).SetUp("nope", true); err == nil {
		t.Error("set up a device that there is not")
	}
}

func underlay(prefix string) netip.Prefix { return netip.MustParsePrefix(prefix) }

// TestAddRoute reaches addresses behind a next hop.
func TestAddRoute(t *testing.T) {
	a, b := testkit.VethPair(t)
	far := []netip.Prefix{underlay("192.168.11.11/32"), underlay("fd00:11::b/128")}
	if err := rtnl.In(b).Configure("lo", rtnl.DeviceConfig{Addresses: far}); err != nil {
		t.Fatal(err)
	}
	hops := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00:1::2")}
	for i, dst := range []netip.Prefix{underlay("192.168.11.99/24"), underlay("fd00:11::/64")} {
		if err := rtnl.In(a).AddRoute(dst, hops[i]); err != nil {
			t.Fatal(err)
		}
		// A new IPv6 address receives a moment after it is there.
		testkit.Eventually(t, 10*time.Second, func() error { return testkit.Ping(a, far[i].Addr(), 8) })
		if err := rtnl.In(a).AddRoute(dst, hops[i]); err == nil {
			t.Error("a second route to one destination")
		}
	}
	if err := rtnl.In(a).AddRoute(underlay("192.168.12.0/24"), netip.MustParseAddr("172.16.0.1")); err == nil {
		t.Error("a route by a next hop that is nowhere")
	}
}

// TestFinishPackets reads what the other end of a wire is given, which is whole
// packets with their checksums.
func TestFinishPackets(t *testing.T) {
	a, b := testkit.VethPair(t)
	if err := rtnl.In(a).DisableOffloads("left"); err != nil {
		t.Fatal(err)
	}
	on, err := rtnl.In(a).Offloads("left")
	if err != nil || on["tso"] || on["tx-checksum"] {
		t.Errorf("offloads are %v, %v", on, err)
	}
	server := testkit.Echo(t, b, "tcp", "[fd00:1::2]:0")
	if _, err := testkit.RoundTrip(t, a, "tcp", server.String(), make([]byte, 1<<18)); err != nil {
		t.Error(err)
	}
	if err := rtnl.In(a).DisableOffloads("none"); err == nil {
		t.Error("a device that is not there")
	}
}
