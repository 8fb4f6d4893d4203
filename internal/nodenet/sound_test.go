// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestClaims has a node claim ranges and addresses that are not its own. They get no route and stay masqueraded, the
// error names the node, and the others are reached.
func TestClaims(t *testing.T) {
	c := newCluster(t, kind{nodes: 3, family: "ipv4", routing: Auto})
	n, bad := c.nodes[0], c.nodes[1]
	n.network.Reserved = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("203.0.113.5")} }
	c.ip(n.ns, "link add dock type bridge")
	c.ip(n.ns, "addr add 172.17.0.1/16 dev dock")
	c.ip(n.ns, "link set dock up")
	far := Node{Name: "node-9", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}
	own, address := bad.Ranges, bad.Addresses
	n.network.ClusterIPs = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.96.0.1")} }
	bad.Created = time.Now() // younger than the others
	kept := func() string { return c.run(n.ns, "nft list set inet mustang-agent kept4") }
	bad.Ranges = nil
	c.must(n.network.Apply(n.Node, append(c.others(n), far)))
	without := kept()
	claims := map[string]string{ // a range, or an address, and what stands in the error
		"0.0.0.0/1": "/8", "128.0.0.0/2": "/8", "0.0.0.0/8": "unspecified", "127.0.0.0/9": "loopback",
		"169.254.169.254/32": "link-local",
		"224.0.0.0/8":        "multicast", "192.0.2.3/32": "of node node-3", "203.0.113.9/32": "of node node-9",
		"192.0.2.1/32":   "of node node-1",
		"192.0.2.128/25": "192.0.2.0/24", "172.16.0.0/12": "172.17.0.0/16", "203.0.113.0/29": "203.0.113.5/32",
		"10.1.1.128/25": "10.1.1.0/24",
		"10.96.0.0/12":  "10.96.0.1 of a Service", "10.96.0.1": "belongs to a Service",
		"10.1.3.7":  "in the range 10.1.3.0/24 of node node-3",
		"127.0.0.1": "loopback", "0.0.0.0": "unspecified", "255.255.255.255": "broadcast", "224.0.0.1": "multicast",
		"169.254.1.1":  "link-local",
		"fe80::1%eth0": "has a zone",
		"192.0.2.1":    "of this node", "172.17.0.1": "of this node", "10.1.1.7": "of this node's pods",
	}
	for claim, want := range claims {
		bad.Ranges, bad.Addresses = own, address
		if r, err := netip.ParsePrefix(claim); err == nil {
			bad.Ranges = []netip.Prefix{r}
		} else {
			bad.Addresses = []netip.Addr{netip.MustParseAddr(claim)}
		}
		err := n.network.Apply(n.Node, append(c.others(n), far))
		testkit.Check(t, err != nil && strings.Contains(err.Error(), "node node-2: ") &&
			strings.Contains(err.Error(), claim) && strings.Contains(err.Error(), want) &&
			!strings.Contains(err.Error(), "node node-3: "),
			"%s: error %v, want one about node-2 with %q", claim, err, want)
		got := c.ip(n.ns, "-4 route show proto 109")
		testkit.Check(t, strings.TrimSpace(got) == "10.1.3.0/24 via 192.0.2.3 dev eth0 onlink",
			"%s: there are the routes\n%s", claim, got)
		if got := kept(); bad.Ranges[0] != own[0] && got != without {
			t.Errorf("%s is not masqueraded: %s\nwithout it %s", claim, got, without)
		}
	}
}

// TestSound has ranges that two nodes claim be the older one's, and takes the networks of this node's own pods for no
// others'.
func TestSound(t *testing.T) {
	node := func(name string, age int, address string, ranges ...string) Node {
		n := Node{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Created: time.Unix(int64(1000-age),
			0), UID: name}
		for _, r := range ranges {
			n.Ranges = append(n.Ranges, netip.MustParsePrefix(r))
		}
		return n
	}
	self := node("a", 0, "10.0.0.1", "10.1.1.0/24", "fd00:1:1::/64")
	host := Host{
		Local: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/16"), netip.MustParsePrefix("10.0.0.1/24"),
			netip.MustParsePrefix("fe80::1/64")},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("10.96.0.10"),
			netip.MustParseAddr("10.96.0.1")},
	}
	others := []Node{
		node("d", 5, "10.0.0.4", "10.1.2.0/24", "10.1.4.0/24"), node("c", 4, "2001:db8::3", "fd00::/8"),
		node("b", 3, "10.0.0.2", "10.1.2.0/25", "fd00:1:2::/64"),
		node("e", 2, "10.1.4.9", "10.1.5.0/24"), node("f", 1, "10.0.0.4", "10.96.0.0/28", "fd00:96::/112", "10.96.1.0/24"),
	}
	sound, refused := Sound(self, others, host)
	want := []Node{
		node("b", 3, "10.0.0.2", "fd00:1:2::/64"), node("c", 4, "2001:db8::3"), node("d", 5, "10.0.0.4", "10.1.2.0/24",
			"10.1.4.0/24"),
		node("e", 2, "10.1.4.9", "10.1.5.0/24"), node("f", 1, "10.0.0.4", "10.96.1.0/24"),
	}
	want[3].Addresses = nil
	testkit.Check(t, fmt.Sprint(sound) == fmt.Sprint(want) && len(refused) == 5, "%v\n%v\nwant %v", sound, refused, want)
	testkit.Check(t, slices.Equal(others[0].Ranges, node("d", 5, "10.0.0.4", "10.1.2.0/24", "10.1.4.0/24").Ranges),
		"what was given is changed: %v", others)
	others[0].Created = others[2].Created // of one second: the UID decides
	sound, _ = Sound(self, others, host)
	testkit.Check(t, fmt.Sprint(sound[0].Ranges, sound[2].Ranges) == "[10.1.2.0/25 fd00:1:2::/64] [10.1.4.0/24]",
		"of one second: %v", sound)
}

// TestUnderlay has all nodes decide alike for one family: a node without IPv4 moves the tunnel of others to IPv6 only
// where all have that.
func TestUnderlay(t *testing.T) {
	of := func(addresses ...string) (n Node) {
		for _, a := range addresses {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	four, six, dual, none := of("192.0.2.1"), of("2001:db8::1"), of("2001:db8::2", "192.0.2.2"), of()
	for _, c := range []struct {
		self   Node
		others []Node
		want   string
	}{
		{four, nil, "192.0.2.1"}, {six, nil, "2001:db8::1"}, {dual, nil, "192.0.2.2"}, {none, nil, "invalid IP"},
		{dual, []Node{six}, "2001:db8::2"}, {dual, []Node{four}, "192.0.2.2"}, {dual, []Node{none}, "192.0.2.2"},
		{dual, []Node{four, six}, "192.0.2.2"}, {four, []Node{dual, six}, "192.0.2.1"}, {six, []Node{dual, four},
			"invalid IP"}, {six, []Node{dual, none}, "2001:db8::1"},
	} {
		got := underlay(c.self, c.others).String()
		testkit.Check(t, got == c.want, "%v with %v: %s, want %s", c.self.Addresses, c.others, got, c.want)
	}
}

// TestSecondUplink has a node with a second uplink on the segment of another node, which uses the address of its first
// uplink: both have to choose the tunnel.
func TestSecondUplink(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routed: true, routing: Auto, family: "ipv4"})
	second := c.nodes[1].ns
	for _, args := range []string{"link add br0 type bridge mcast_snooping 0", "addr flush dev port1",
		"link set port1 master br0", "link set br0 up"} {
		c.ip(c.wire, args)
	}
	c.ip(c.wire, "addr add "+families[0].router(1).String()+" dev br0")
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: second, Name: "eth1"}, rtnl.VethEnd{Namespace: c.wire, Name: "port3"},
		podlink.DefaultMTU))
	c.ip(c.wire, "link set port3 master br0 up")
	c.must(rtnl.In(second).Configure("eth1",
		rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.1.9/24")}, Up: true}))
	c.apply()
	c.tunnels(true)
	c.reach("two uplinks")
}

// TestTwoDevicesInOneSegment has a node with two devices in the segment: its address is at the second, and the kernel's
// route by the first.
func TestTwoDevicesInOneSegment(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: Auto, family: "ipv4"})
	second := c.nodes[1]
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: second.ns, Name: "eth1"}, rtnl.VethEnd{Namespace: c.wire, Name: "port3"},
		podlink.DefaultMTU))
	c.ip(c.wire, "link set port3 master br0 up")
	c.must(rtnl.In(second.ns).Configure("eth1",
		rtnl.DeviceConfig{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}, Up: true}))
	second.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	c.apply()
	c.tunnels(false)
	c.reach("two devices")
}

// TestDeviceWithoutNeighbours has the node's address at a device like a VPN's, which ignores the next hop of a route.
func TestDeviceWithoutNeighbours(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: Auto, family: "ipv4"})
	first, second := c.nodes[0], c.nodes[1]
	for _, args := range []string{"tuntap add vpn0 mode tun", "addr add 100.64.0.1/24 dev vpn0", "link set vpn0 up"} {
		c.ip(first.ns, args)
	}
	first.Addresses, second.Addresses = []netip.Addr{netip.MustParseAddr("100.64.0.1")},
		[]netip.Addr{netip.MustParseAddr("100.64.0.2")}
	c.must(first.network.Apply(first.Node, c.others(first)))
	routes := c.ip(first.ns, "route show proto 109")
	testkit.Check(t, strings.Contains(routes, DeviceName), "routes %q, want one by %s", routes, DeviceName)
}

// TestTunnelWithoutIPv6 has nodes whose kernel was booted with ipv6.disable=1: it lacks the settings of IPv6.
func TestTunnelWithoutIPv6(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routed: true, routing: Auto, family: "ipv4"})
	for _, n := range c.nodes {
		c.run(n.ns, "mount -t tmpfs none /proc/sys/net/ipv6")
		t.Cleanup(func() { c.run(n.ns, "umount /proc/sys/net/ipv6") })
	}
	c.apply()
	c.reach("without IPv6")
}

// TestRefusedRangeAroundNode has a refused range that contains a node: all addresses of the node stay reachable.
func TestRefusedRangeAroundNode(t *testing.T) {
	p, first := plan{}, netip.MustParseAddr("203.0.113.9")
	p.shut(Node{}, []Node{{Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}},
		[]Node{{Addresses: []netip.Addr{first, first.Next()}}}, Host{})
	testkit.Check(t, len(p.closed) == 1 && slices.Equal(p.open, []netip.Prefix{single(first), single(first.Next())}),
		"nftables drops packets to %v, except to %v", p.closed, p.open)
}

// TestIntervals has intervals of prefixes that hold, overlap and follow each other, and that reach to the last address.
func TestIntervals(t *testing.T) {
	for prefixes, want := range map[string]string{
		"10.1.1.0/24":             "10.1.1.0-10.1.2.0",
		"10.1.1.0/24 10.1.2.0/24": "10.1.1.0-10.1.3.0",
		"10.1.2.0/24 10.1.1.0/24 10.1.0.0/16 10.3.0.0/16": "10.1.0.0-10.2.0.0 10.3.0.0-10.4.0.0",
		"10.1.0.0/16 10.1.0.0/16 10.1.255.0/24":           "10.1.0.0-10.2.0.0",
		"240.0.0.0/4 255.255.255.255/32 10.0.0.0/8":       "10.0.0.0-11.0.0.0 240.0.0.0",
		"0.0.0.0/0 10.0.0.0/8":                            "0.0.0.0",
		"fd00::/64 10.1.0.0/16":                           "10.1.0.0-10.2.0.0",
		"fd00::/64":                                       "",
	} {
		var list []netip.Prefix
		for _, p := range strings.Fields(prefixes) {
			list = append(list, netip.MustParsePrefix(p))
		}
		var got strings.Builder
		for i, e := range intervals(list, true) {
			a, _ := netip.AddrFromSlice(e.Key)
			switch {
			case e.IntervalEnd:
				fmt.Fprint(&got, "-", a)
			case i > 0:
				fmt.Fprint(&got, " ", a)
			default:
				fmt.Fprint(&got, a)
			}
		}
		testkit.Check(t, got.String() == want, "%s: got %q, want %q", prefixes, &got, want)
	}
}
