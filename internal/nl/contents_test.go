// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestSysctl sets a sysctl in one namespace and reads it in all.
func TestSysctl(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	root, err := nl.CurrentNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const key = "net/ipv4/ip_default_ttl"
	read := func(ns *nl.Namespace) string {
		value, err := ns.Sysctl(key)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	before := read(root)
	if err := a.SetSysctl(key, "33"); err != nil {
		t.Fatal(err)
	}
	if read(a) != "33" || read(b) == "33" || read(root) != before {
		t.Errorf("values are %s, %s and %s", read(a), read(b), read(root))
	}
	if err := a.SetSysctl("net/ipv4/no_such_key", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("setting what is not there: %v", err)
	}
	if _, err := a.Sysctl("net/ipv4/no_such_key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading what is not there: %v", err)
	}
	if err := a.SetSysctl(key, "not a number"); err == nil {
		t.Error("a wrong value is no error")
	}
	if err := a.SetSysctl("net/../kernel/hostname", "x"); err == nil {
		t.Error("a path out of net is no error")
	}
}

// handle opens a netlink socket in ns, until the test is over.
func handle(t *testing.T, ns *nl.Namespace) *netlink.Handle {
	t.Helper()
	h, err := ns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// makeDevices gives a a bridge with a port, whose peer is in b, and a macvlan
// device on the bridge.
func makeDevices(t *testing.T, a, b *nl.Namespace) {
	t.Helper()
	inA, inB := handle(t, a), handle(t, b)
	attrs := func(name string) netlink.LinkAttrs {
		out := netlink.NewLinkAttrs()
		out.Name = name
		return out
	}
	bridge := &netlink.Bridge{LinkAttrs: attrs("br")}
	if err := inA.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	port := &netlink.Veth{
		LinkAttrs: attrs("port"), PeerName: "inner", PeerNamespace: netlink.NsFd(b.FD()), PeerTxQLen: -1,
	}
	port.MTU = 1400
	port.MasterIndex = bridge.Index
	if err := inA.LinkAdd(port); err != nil {
		t.Fatal(err)
	}
	macvlan := &netlink.Macvlan{LinkAttrs: attrs("mv"), Mode: netlink.MACVLAN_MODE_BRIDGE}
	macvlan.ParentIndex = bridge.Index
	if err := inA.LinkAdd(macvlan); err != nil {
		t.Fatal(err)
	}
	inner, err := inB.LinkByName("inner")
	if err != nil {
		t.Fatal(err)
	}
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			t.Fatal(err)
		}
		if err := inB.AddrAdd(inner, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := inB.LinkSetUp(inner); err != nil {
		t.Fatal(err)
	}
}

// TestDevices looks at devices of several kinds from both sides.
func TestDevices(t *testing.T) {
	a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
	makeDevices(t, a, b)
	find := func(ns *nl.Namespace, name string) nl.Device {
		device, err := ns.Device(name)
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	bridge, port, macvlan, inner := find(a, "br"), find(a, "port"), find(a, "mv"), find(b, "inner")
	for device, kind := range map[string]string{
		find(a, "lo").Kind: "loopback", bridge.Kind: "bridge", port.Kind: "veth", macvlan.Kind: "macvlan", inner.Kind: "veth",
	} {
		if device != kind {
			t.Errorf("kind is %q, not %q", device, kind)
		}
	}
	if port.PeerIndex != inner.Index || inner.PeerIndex != port.Index || port.ParentIndex != 0 {
		t.Errorf("peers are %+v and %+v", port, inner)
	}
	if port.PeerNSID < 0 || inner.PeerNSID < 0 || bridge.PeerNSID != -1 || macvlan.PeerNSID != -1 {
		t.Errorf("namespace ids are %d, %d, %d and %d", port.PeerNSID, inner.PeerNSID, bridge.PeerNSID, macvlan.PeerNSID)
	}
	if port.MasterIndex != bridge.Index || inner.MasterIndex != 0 {
		t.Errorf("masters are %d and %d", port.MasterIndex, inner.MasterIndex)
	}
	if macvlan.ParentIndex != bridge.Index || macvlan.PeerIndex != 0 {
		t.Errorf("parent is %d, peer %d", macvlan.ParentIndex, macvlan.PeerIndex)
	}
	if port.MTU != 1400 || len(inner.MAC) != 6 || port.Up || !inner.Up {
		t.Errorf("devices are %+v and %+v", port, inner)
	}
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		if !slices.Contains(inner.Addrs, netip.MustParsePrefix(cidr)) {
			t.Errorf("addresses are %v", inner.Addrs)
		}
	}
	devices, err := a.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 4 || !slices.IsSortedFunc(devices, func(x, y nl.Device) int { return x.Index - y.Index }) {
		t.Errorf("devices are %+v", devices)
	}
	if _, err := a.Device("inner"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a device of another namespace: %v", err)
	}
	for name, want := range map[string]bool{"lo": true, "port": true, "inner": false, "none": false} {
		if has, err := a.HasDevice(name); err != nil || has != want {
			t.Errorf("HasDevice(%q): %t, %v", name, has, err)
		}
	}
	if _, err := a.HasDevice("a-name-that-is-too-long"); err == nil {
		t.Error("HasDevice took a name that no device can have")
	}
}

// TestDeviceCounters counts what goes through the loopback device.
func TestDeviceCounters(t *testing.T) {
	ns := testkit.Namespace(t, "count")
	before, err := ns.Device("lo")
	if err != nil {
		t.Fatal(err)
	}
	server := testkit.Echo(t, ns, "udp", "127.0.0.1:0")
	if _, err := testkit.RoundTrip(t, ns, "udp", server.String(), make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	after, err := ns.Device("lo")
	if err != nil {
		t.Fatal(err)
	}
	packets, size := after.RxPackets-before.RxPackets, after.RxBytes-before.RxBytes
	if packets != 4 || after.TxPackets-before.TxPackets != 4 || size < 2000 || after.TxBytes-before.TxBytes != size {
		t.Errorf("%d packets of %d bytes in all", packets, size)
	}
}

// TestFlows makes connections that the kernel tracks because of a rule.
func TestFlows(t *testing.T) {
	testkit.RequireTool(t, "nft")
	ns := testkit.Namespace(t, "flows")
	if flows, err := ns.Flows(); err != nil || len(flows) != 0 {
		t.Fatalf("before: %v, %v", flows, err)
	}
	if err := ns.Do(trackConnections); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
			t.Run(fmt.Sprint(network, " ", addr), func(t *testing.T) {
				server := testkit.Echo(t, ns, network, addr)
				client, err := testkit.RoundTrip(t, ns, network, server.String(), []byte("hello"))
				if err != nil {
					t.Fatal(err)
				}
				want := nl.Flow{
					Proto: map[string]uint8{"tcp": 6, "udp": 17}[network],
					Orig:  nl.Tuple{Src: client, Dst: server},
					Reply: nl.Tuple{Src: server, Dst: client},
				}
				flows, err := ns.Flows()
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(flows, want) {
					t.Errorf("%v is not in %v", want, flows)
				}
			})
		}
	}
	if err := ns.FlushFlows(); err != nil {
		t.Fatal(err)
	}
	if flows, err := ns.Flows(); err != nil || len(flows) != 0 {
		t.Errorf("afterwards: %v, %v", flows, err)
	}
}

// trackConnections adds a rule that needs connection tracking.
func trackConnections() error {
	rules, err := knftables.New(knftables.InetFamily, "mst-test")
	if err != nil {
		return err
	}
	tx := rules.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name: "input", Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.InputHook),
		Priority: knftables.PtrTo(knftables.FilterPriority),
	})
	tx.Add(&knftables.Rule{Chain: "input", Rule: "ct state invalid drop"})
	return rules.Run(context.Background(), tx)
}
