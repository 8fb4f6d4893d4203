// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestOwnAddresses removes the addresses that were added as Mustang's, and none of another's, also where the kernel counts that as the second one of its subnet.
func TestOwnAddresses(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	conn := rtnl.In(ns)
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	handle, err := conn.Handle()
	must(err)
	defer handle.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br.0"
	must(handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	link, err := handle.LinkByName("br.0")
	must(err)
	before := prefixes("10.9.0.5/24", "fd00:9::5/64")
	must(conn.Configure("br.0", rtnl.DeviceConfig{Up: true, Addresses: before}))
	own := prefixes("10.9.0.1/24", "10.10.0.1/24", "10.11.0.1/32", "fd00:9::1/64", "fd00:10::1/128")
	for i, address := range slices.Concat(own, before, own) {
		added, err := conn.AddOwnAddress(link, address)
		must(err)
		if want := i < len(own); added != want {
			t.Errorf("%v: added %t, want %t", address, added, want)
		}
	}
	later := prefixes("10.10.0.5/24") // second to 10.10.0.1
	must(conn.Configure("br.0", rtnl.DeviceConfig{Addresses: later}))
	must(conn.RemoveOwnAddresses("br.0", slices.Concat(before, own, later, prefixes("10.12.0.1/24"))))
	device, err := conn.Device("br.0")
	must(err)
	for _, address := range slices.Concat(before, later) {
		if !slices.Contains(device.Addrs, address) {
			t.Errorf("%v of another is gone", address)
		}
	}
	for _, address := range own {
		if slices.Contains(device.Addrs, address) {
			t.Errorf("%v is there still", address)
		}
	}
	if value, err := conn.Sysctl("net/ipv4/conf/br.0/promote_secondaries"); err != nil || value != "0" {
		t.Errorf("promote_secondaries is %q, %v", value, err)
	}
	must(conn.RemoveOwnAddresses("missing", own))
}
