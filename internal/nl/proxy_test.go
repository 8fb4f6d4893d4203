// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"net/netip"
	"testing"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestAddProxy has a host answer for the address of another one behind it, until
// its device is set down.
func TestAddProxy(t *testing.T) {
	a, b := routedPair(t)
	c := testkit.Namespace(t, "c")
	behind := netip.MustParseAddr("10.0.0.9")
	if err := nl.AddWire(nl.WireEnd{Namespace: b, Name: "down"}, nl.WireEnd{Namespace: c, Name: "eth0"}, 1500); err != nil {
		t.Fatal(err)
	}
	if err := b.Configure("down", nl.DeviceConfig{Addresses: []netip.Prefix{underlay("10.0.9.1/24")}, Up: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure("eth0", nl.DeviceConfig{Addresses: []netip.Prefix{underlay("10.0.9.2/24"), underlay("10.0.0.9/32")}, Up: true}); err != nil {
		t.Fatal(err)
	}
	if err := b.AddRoute(netip.PrefixFrom(behind, 32), netip.MustParseAddr("10.0.9.2")); err != nil {
		t.Fatal(err)
	}
	if err := c.AddRoute(underlay("10.0.0.0/24"), netip.MustParseAddr("10.0.9.1")); err != nil {
		t.Fatal(err)
	}
	if err := b.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second entry is no error
		if err := b.AddProxy("right", behind); err != nil {
			t.Fatal(err)
		}
	}
	if err := testkit.Ping(a, behind, 8); err != nil {
		t.Error(err)
	}
	for _, up := range []bool{false, true} {
		if err := b.SetUp("right", up); err != nil {
			t.Fatal(err)
		}
		device, err := b.Device("right")
		if err != nil || device.Up != up || len(device.Addrs) == 0 || device.Addrs[0] != underlay("10.0.0.2/24") {
			t.Errorf("set up %t: %+v, %v", up, device, err)
		}
	}
	if err := testkit.Ping(a, netip.MustParseAddr("10.0.0.2"), 8); err != nil {
		t.Error(err)
	}
	if err := b.AddProxy("right", netip.MustParseAddr("fd00:1::9")); err == nil {
		t.Error("answers for an IPv6 address")
	}
	if err := b.AddProxy("nope", behind); err == nil {
		t.Error("answers at a device that there is not")
	}
	if err := b.SetUp("nope", true); err == nil {
		t.Error("set up a device that there is not")
	}
}
