// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestSysctl sets a sysctl in one namespace and reads it in all.
func TestSysctl(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	root := testkit.Must(netns.Current())(t)
	defer root.Close()
	const key = "net/ipv4/ip_default_ttl"
	read := func(ns *netns.Namespace) string {
		return testkit.Must(rtnl.In(ns).Sysctl(key))(t)
	}
	before := read(root)
	testkit.Succeed(t, rtnl.In(a).SetSysctl(key, "33"))
	if read(a) != "33" || read(b) == "33" || read(root) != before {
		t.Errorf("values are %s, %s and %s", read(a), read(b), read(root))
	}
	err := rtnl.In(a).SetSysctl("net/ipv4/no_such_key", "1")
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "setting what is not there: %v", err)
	_, err = rtnl.In(a).Sysctl("net/ipv4/no_such_key")
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "reading what is not there: %v", err)
	testkit.Fails(t, rtnl.In(a).SetSysctl(key, "not a number"))
	testkit.Fails(t, rtnl.In(a).SetSysctl("net/../kernel/hostname", "x"))
}

// handle opens a netlink socket in ns, until the test is over.
func handle(t *testing.T, ns *netns.Namespace) *netlink.Handle {
	t.Helper()
	h := testkit.Must(rtnl.In(ns).Handle())(t)
	t.Cleanup(h.Close)
	return h
}

// makeDevices gives a a bridge with a port, whose peer is in b, and a macvlan device on the bridge.
func makeDevices(t *testing.T, a, b *netns.Namespace) {
	t.Helper()
	inA, inB := handle(t, a), handle(t, b)
	attrs := func(name string) netlink.LinkAttrs {
		out := netlink.NewLinkAttrs()
		out.Name = name
		return out
	}
	bridge := &netlink.Bridge{LinkAttrs: attrs("br")}
	testkit.Succeed(t, inA.LinkAdd(bridge))
	port := &netlink.Veth{
		LinkAttrs: attrs("port"), PeerName: "inner", PeerNamespace: netlink.NsFd(b.FD()), PeerTxQLen: -1,
	}
	port.MTU = 1400
	port.MasterIndex = bridge.Index
	testkit.Succeed(t, inA.LinkAdd(port))
	macvlan := &netlink.Macvlan{LinkAttrs: attrs("mv"), Mode: netlink.MACVLAN_MODE_BRIDGE}
	macvlan.ParentIndex = bridge.Index
	testkit.Succeed(t, inA.LinkAdd(macvlan))
	inner := testkit.Must(inB.LinkByName("inner"))(t)
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		addr := testkit.Must(netlink.ParseAddr(cidr))(t)
		testkit.Succeed(t, inB.AddrAdd(inner, addr))
	}
	testkit.Succeed(t, inB.LinkSetUp(inner))
}

// TestDevices looks at devices of several kinds from both sides.
func TestDevices(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	makeDevices(t, a, b)
	find := func(ns *netns.Namespace, name string) rtnl.Device {
		return testkit.Must(rtnl.In(ns).Device(name))(t)
	}
	bridge, port, macvlan, inner := find(a, "br"), find(a, "port"), find(a, "mv"), find(b, "inner")
	for device, kind := range map[string]string{
		find(a, "lo").Kind: "loopback", bridge.Kind: "bridge", port.Kind: "veth", macvlan.Kind: "macvlan", inner.Kind: "veth",
	} {
		testkit.Check(t, device == kind, "kind is %q, not %q", device, kind)
	}
	testkit.Check(t, port.PeerIndex == inner.Index && inner.PeerIndex == port.Index && port.ParentIndex == 0,
		"peers are %+v and %+v", port, inner)
	testkit.Check(t, port.PeerNSID >= 0 && inner.PeerNSID >= 0 && bridge.PeerNSID == -1 && macvlan.PeerNSID == -1,
		"namespace ids are %d, %d, %d and %d", port.PeerNSID, inner.PeerNSID, bridge.PeerNSID, macvlan.PeerNSID)
	testkit.Check(t, port.MasterIndex == bridge.Index && inner.MasterIndex == 0,
		"masters are %d and %d", port.MasterIndex, inner.MasterIndex)
	testkit.Check(t, macvlan.ParentIndex == bridge.Index && macvlan.PeerIndex == 0,
		"parent is %d, peer %d", macvlan.ParentIndex, macvlan.PeerIndex)
	testkit.Check(t, port.MTU == 1400 && len(inner.MAC) == 6 && !port.Up && inner.Up,
		"devices are %+v and %+v", port, inner)
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		testkit.Check(t, slices.Contains(inner.Addrs, netip.MustParsePrefix(cidr)), "addresses are %v", inner.Addrs)
	}
	devices := testkit.Must(rtnl.In(a).Devices())(t)
	if len(devices) != 4 || !slices.IsSortedFunc(devices, func(x, y rtnl.Device) int { return x.Index - y.Index }) {
		t.Errorf("devices are %+v", devices)
	}
	_, err := rtnl.In(a).Device("inner")
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "a device of another namespace: %v", err)
	for name, want := range map[string]bool{"lo": true, "port": true, "inner": false, "none": false} {
		has, err := rtnl.In(a).HasDevice(name)
		testkit.Check(t, err == nil && has == want, "HasDevice(%q): %t, %v", name, has, err)
	}
	_, err = rtnl.In(a).HasDevice("a-name-that-is-too-long")
	testkit.Check(t, err != nil, "HasDevice took a name that no device can have")
}

// TestOwnAddresses removes the addresses that were added as Mustang's, and none of another's, also where the kernel
// counts that as the second one of its subnet.
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
		testkit.Succeed(t, err)
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
		want := i < len(own)
		testkit.Check(t, added == want, "%v: added %t, want %t", address, added, want)
	}
	later := prefixes("10.10.0.5/24") // second to 10.10.0.1
	must(conn.Configure("br.0", rtnl.DeviceConfig{Addresses: later}))
	must(conn.RemoveOwnAddresses("br.0", slices.Concat(before, own, later, prefixes("10.12.0.1/24"))))
	device, err := conn.Device("br.0")
	must(err)
	for _, address := range slices.Concat(before, later) {
		testkit.Check(t, slices.Contains(device.Addrs, address), "%v of another is gone", address)
	}
	for _, address := range own {
		testkit.Check(t, !slices.Contains(device.Addrs, address), "%v is there still", address)
	}
	value, err := conn.Sysctl("net/ipv4/conf/br.0/promote_secondaries")
	testkit.Check(t, err == nil && value == "0", "promote_secondaries is %q, %v", value, err)
	must(conn.RemoveOwnAddresses("missing", own))
}

func TestConfigure(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	testkit.Succeed(t, rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: "left"}, rtnl.VethEnd{Namespace: b,
		Name: "right"}, 1500))
	config := rtnl.DeviceConfig{Up: true, MTU: 1400, Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00:9::1/64"), netip.MustParsePrefix("fe80::9/64"),
	}}
	for range 2 { // an existing one is not an error
		testkit.Succeed(t, rtnl.In(a).Configure("left", config))
		device := testkit.Must(rtnl.In(a).Device("left"))(t)
		testkit.Check(t, device.Up && device.MTU == config.MTU, "the device is %+v", device)
		for _, want := range config.Addresses {
			testkit.Check(t, slices.Contains(device.Addrs, want), "address %s is missing of %v", want, device.Addrs)
		}
	}
	device, err := rtnl.In(b).Device("right")
	testkit.Check(t, err == nil && device.MTU == 1500 && len(device.Addrs) == 1, "the other end is %+v (%v)", device, err)
}

func TestConfigureFails(t *testing.T) {
	ns := testkit.Namespace(t, "a")
	for _, test := range []struct {
		name   string
		config rtnl.DeviceConfig
		want   string
	}{
		{"nobody", rtnl.DeviceConfig{Up: true}, `"nobody"`},
		{"lo", rtnl.DeviceConfig{MTU: -1}, "MTU -1"},
		{"lo", rtnl.DeviceConfig{Addresses: []netip.Prefix{{}}}, "address"},
		{"lo", rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), -1)}},
			"10.0.0.1"},
	} {
		err := rtnl.In(ns).Configure(test.name, test.config)
		testkit.Fails(t, err, test.want)
		testkit.Fails(t, err, fmt.Sprintf("%q", ns.Name()))
	}
}
