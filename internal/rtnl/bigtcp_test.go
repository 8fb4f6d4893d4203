// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestPacketsAboveTheDevicesLimitChangeNothing asks a veth device and a bridge for packets of BIG TCP. A bridge without
// ports refuses them, and stays down.
func TestPacketsAboveTheDevicesLimitChangeNothing(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "a")
	handle, err := rtnl.In(ns).Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	for _, test := range []struct {
		kind  string
		takes bool
	}{{"veth", true}, {"bridge", false}} {
		link := &netlink.GenericLink{LinkAttrs: netlink.NewLinkAttrs(), LinkType: test.kind}
		link.Name = "own-" + test.kind
		if err := handle.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
		err := rtnl.SetUpWithPackets(handle, link, rtnl.BigTCPBytes)
		if (err == nil) != test.takes {
			t.Errorf("%s: %v", test.kind, err)
		}
		found, err := handle.LinkByName(link.Name)
		if err != nil {
			t.Fatal(err)
		}
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

// TestPacketsReachTheKernel asks for packets of BIG TCP on missing devices of all kinds: the kernel refuses it, not the library.
func TestPacketsReachTheKernel(t *testing.T) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
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
