// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// TestSecondUplink has a node with a second uplink on the segment of another, which knows it by the address of its first one: both have to choose the
// tunnel.
func TestSecondUplink(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routed: true, routing: Auto, family: "ipv4"})
	second := c.nodes[1].ns
	for _, args := range []string{"link add br0 type bridge mcast_snooping 0", "addr flush dev port1", "link set port1 master br0", "link set br0 up"} {
		c.ip(c.wire, args)
	}
	c.ip(c.wire, "addr add "+families[0].router(1).String()+" dev br0")
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: second, Name: "eth1"}, rtnl.VethEnd{Namespace: c.wire, Name: "port3"}, podlink.DefaultMTU))
	c.ip(c.wire, "link set port3 master br0 up")
	c.must(rtnl.In(second).Configure("eth1", rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.1.9/24")}, Up: true}))
	c.apply()
	c.tunnels(true)
	c.reach("two uplinks")
}

// TestTwoDevicesInOneSegment has a node with two devices in the segment: its address is at the second, and the kernel's route by the first.
func TestTwoDevicesInOneSegment(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: Auto, family: "ipv4"})
	second := c.nodes[1]
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: second.ns, Name: "eth1"}, rtnl.VethEnd{Namespace: c.wire, Name: "port3"}, podlink.DefaultMTU))
	c.ip(c.wire, "link set port3 master br0 up")
	c.must(rtnl.In(second.ns).Configure("eth1", rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}, Up: true}))
	second.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	c.apply()
	c.tunnels(false)
	c.reach("two devices")
}

// TestDeviceWithoutNeighbours has the node's address at a device like those of VPNs, where the next hop of a route counts for nothing.
func TestDeviceWithoutNeighbours(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: Auto, family: "ipv4"})
	first, second := c.nodes[0], c.nodes[1]
	for _, args := range []string{"tuntap add vpn0 mode tun", "addr add 100.64.0.1/24 dev vpn0", "link set vpn0 up"} {
		c.ip(first.ns, args)
	}
	first.Addresses, second.Addresses = []netip.Addr{netip.MustParseAddr("100.64.0.1")}, []netip.Addr{netip.MustParseAddr("100.64.0.2")}
	c.must(first.network.Apply(first.Node, c.others(first)))
	if routes := c.ip(first.ns, "route show proto 109"); !strings.Contains(routes, DeviceName) {
		t.Errorf("routes %q, want one by %s", routes, DeviceName)
	}
}

// TestTunnelWithoutIPv6 has nodes whose kernel was booted with ipv6.disable=1: it has no settings of IPv6.
func TestTunnelWithoutIPv6(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routed: true, routing: Auto, family: "ipv4"})
	for _, n := range c.nodes {
		c.run(n.ns, "mount -t tmpfs none /proc/sys/net/ipv6")
		t.Cleanup(func() { c.run(n.ns, "umount /proc/sys/net/ipv6") })
	}
	c.apply()
	c.reach("without IPv6")
}
