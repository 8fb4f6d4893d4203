// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestReach has pods of three nodes reach each other in each way, in each family. A second run writes nothing, and
// Remove leaves nothing.
func TestReach(t *testing.T) {
	for _, k := range []kind{
		{routing: Native}, {routing: Native, family: "ipv4"}, {routing: Native, family: "ipv6"},
		{routing: Auto}, {routing: VXLAN},
		{routing: Auto, routed: true}, {routing: Auto, routed: true, family: "ipv4"}, {routing: Auto, routed: true,
			family: "ipv6"},
	} {
		t.Run(fmt.Sprint(k.routing, "/", k.family, "/", k.routed), func(t *testing.T) {
			k.nodes = 3
			c := newCluster(t, k)
			before := c.state(c.nodes[0])
			c.apply()
			c.reach("first")
			c.tunnels(k.routed || k.routing == VXLAN)
			c.quiet()
			for _, n := range c.nodes {
				c.must(n.network.Remove())
			}
			after := c.state(c.nodes[0])
			testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
		})
	}
}

// tunnels checks that nodes have VXLAN devices, or none.
func (c *cluster) tunnels(want bool) {
	c.t.Helper()
	for _, n := range c.nodes {
		have, err := rtnl.In(n.ns).HasDevice(DeviceName)
		if c.must(err); have != want {
			c.t.Errorf("%s has a VXLAN device: %v, want %v", n.Name, have, want)
		}
	}
}

// quiet applies all nodes again. The kernel must not report any change.
func (c *cluster) quiet() {
	c.t.Helper()
	for _, n := range c.nodes {
		before := c.state(n)
		changes := c.changes(n)
		c.must(n.network.Apply(n.Node, c.others(n)))
		lines := changes()
		testkit.Check(c.t, lines == nil, "%s: a second run has changed %v", n.Name, lines)
		after := c.state(n)
		testkit.Check(c.t, after == before, "%s: before a second run\n%s\nafter it\n%s", n.Name, before, after)
	}
}

// TestChanges changes nodes of a cluster: one goes, one gets another address, one gets other ranges, and one comes.
func TestChanges(t *testing.T) {
	for _, k := range []kind{{routing: Native}, {routing: VXLAN}, {routing: Auto, routed: true}} {
		t.Run(fmt.Sprint(k.routing, "/", k.routed), func(t *testing.T) {
			k.nodes = 3
			c := newCluster(t, k)
			first := c.nodes[0]
			alone := c.state(first)
			c.apply()
			gone := c.nodes[2]
			c.nodes = c.nodes[:2]
			c.apply()
			c.reach("a node is gone")
			if state := c.state(first); strings.Contains(state, gone.Ranges[0].String()) ||
				strings.Contains(state, gone.Ranges[1].String()) {
				t.Errorf("what has led to the node is still there:\n%s", state)
			}

			second := c.nodes[1]
			for f := range second.Addresses {
				to := families[f].segment(77)
				if k.routed {
					to = netip.PrefixFrom(second.Addresses[f].Next(), 64)
				}
				if to.Addr().Is4() {
					to = netip.PrefixFrom(to.Addr(), 24)
				}
				c.ip(second.ns, fmt.Sprintf("addr del %v/%d dev eth0", second.Addresses[f], to.Bits()))
				c.must(rtnl.In(second.ns).Configure("eth0", rtnl.DeviceConfig{Addresses: []netip.Prefix{to}, Up: true}))
				second.Addresses[f] = to.Addr()
			}
			if k.routed { // they went with the addresses
				for _, of := range families {
					c.ip(second.ns, fmt.Sprintf("route replace default via %v dev eth0", of.router(2).Addr()))
				}
			}
			c.apply()
			c.reach("another address")
			c.quiet()

			c.addNode(k, 4)
			c.apply()
			c.reach("a new node")

			c.nodes = c.nodes[:1]
			c.apply()
			c.must(first.network.Remove())
			state := c.state(first)
			testkit.Check(t, state == alone, "alone before\n%s\nalone after\n%s", alone, state)
		})
	}
}

// TestReinstalled gives two nodes each other's names, and one other ranges.
func TestReinstalled(t *testing.T) {
	k := kind{nodes: 3, routing: VXLAN}
	c := newCluster(t, k)
	c.apply()
	a, b := c.nodes[1], c.nodes[2]
	a.Name, b.Name = b.Name, a.Name
	c.apply()
	c.reach("other names")
	a.Ranges, a.pods = []netip.Prefix{families[0].pods(50), families[1].pods(50)}, nil
	c.addPod(a, k)
	c.apply()
	c.reach("other ranges")
	c.quiet()
}

// TestForeign leaves routes, neighbours and devices of others alone, and reports where they are in the way.
func TestForeign(t *testing.T) {
	c := newCluster(t, kind{nodes: 3, routing: Native})
	n := c.nodes[0]
	c.ip(n.ns, "route add 10.1.2.0/24 via 192.0.2.3")
	c.ip(n.ns, "-6 route add fd00:1:2::/64 via 2001:db8::3")
	c.ip(n.ns, "route add 10.9.0.0/16 via 192.0.2.2 proto bird")
	c.ip(n.ns, "link add mst-vxlan type bridge")
	before := c.state(n)
	err := n.network.Apply(n.Node, c.others(n))
	testkit.Fails(t, err, "10.1.2.0/24", "fd00:1:2::/64")
	testkit.Check(t, !strings.Contains(fmt.Sprint(err), "10.1.3.0/24"), "error %v names a pod CIDR that is right", err)
	if state := c.state(n); !strings.Contains(state, "10.1.3.0/24 via 192.0.2.3 dev eth0 proto 109") {
		t.Errorf("the other node has no route:\n%s", state)
	}
	n.network.Routing = VXLAN
	testkit.Fails(t, n.network.Apply(n.Node, c.others(n)), DeviceName)
	c.must(n.network.Remove())
	after := c.state(n)
	testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
}

// TestNotOnSegment has native routing name the node that it cannot reach, and reach the others.
func TestNotOnSegment(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: Native})
	far := Node{Name: "far", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.9.0/24")}}
	n := c.nodes[0]
	c.must(c.nodes[1].network.Apply(c.nodes[1].Node, c.others(c.nodes[1])))
	testkit.Fails(t, n.network.Apply(n.Node, append(c.others(n), far)), "node far:")
	c.reach("a node is elsewhere")
}

// TestInterrupted leaves a node like a process killed after each change, and like somebody who has tampered: the next
// run repairs.
func TestInterrupted(t *testing.T) {
	for _, k := range []kind{{nodes: 3, routing: Native}, {nodes: 3, routing: VXLAN}} {
		c := newCluster(t, k)
		c.apply()
		n := c.nodes[0]
		whole := c.state(n)
		faults := []string{"ip route del 10.1.2.0/24", "ip -6 route del fd00:1:3::/64", "nft delete table inet mustang-agent"}
		if k.routing == VXLAN {
			faults = append(faults, "ip link del mst-vxlan", "ip link set mst-vxlan down", "ip neigh del 10.1.2.0 dev mst-vxlan",
				"bridge fdb del "+macOf("node-2").String()+" dev mst-vxlan dst 192.0.2.2", "ip addr del 10.1.1.0/32 dev mst-vxlan",
				"ip link set mst-vxlan mtu 1400", "ip link set mst-vxlan address 02:00:00:00:00:01",
				"nft flush chain inet mustang-agent input",
				"nft flush set inet mustang-agent nodes", "ip addr add 10.66.0.1/24 dev mst-vxlan",
				"ip neigh replace 10.1.2.0 lladdr 02:00:00:00:00:01 dev mst-vxlan nud permanent",
				"bridge fdb replace "+macOf("node-2").String()+" dev mst-vxlan dst 192.0.2.9 self permanent")
		}
		for _, fault := range faults {
			c.run(n.ns, fault)
			state := c.state(n)
			testkit.Check(t, state != whole, "%s has changed nothing", fault)
			c.must(n.network.Apply(n.Node, c.others(n)))
			testkit.Eventually(t, 5*time.Second, func() error { // the kernel adds routes of IPv6 addresses later
				if state := c.state(n); normal(state) != normal(whole) {
					return fmt.Errorf("%s: whole\n%s\nrepaired\n%s", fault, whole, state)
				}
				return nil
			})
		}
		c.reach("repaired")
	}
}

// normal leaves out the numbers that the kernel gives, and the order of lines.
func normal(state string) string {
	lines := strings.Split(kernelNumbers.ReplaceAllString(state, ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// kernelNumbers are indexes of devices, and handles and counters of nftables.
var kernelNumbers = regexp.MustCompile(`(?m)^\d+: |handle \d+|packets \d+ bytes \d+`)

// TestMasquerade has a machine outside, and other nodes, see the node's address, and other pods see the pod's.
func TestMasquerade(t *testing.T) {
	for _, k := range []kind{{nodes: 2, routing: Auto, routed: true}, {nodes: 2, routing: Native}} {
		c := newCluster(t, k)
		if !k.routed {
			c.must(rtnl.In(c.wire).Configure("br0", rtnl.DeviceConfig{Addresses: []netip.Prefix{families[0].segment(200),
				families[1].segment(200)}, Up: true}))
		}
		c.apply()
		n, other := c.nodes[0], c.nodes[1]
		for f, of := range families {
			outside := of.router(1).Addr()
			if !k.routed {
				outside = of.segment(200).Addr()
			}
			for _, to := range []struct {
				at   *netns.Namespace
				addr netip.Addr
			}{{c.wire, outside}, {other.ns, other.Addresses[f]}} {
				server := testkit.Echo(t, to.at, "tcp", netip.AddrPortFrom(to.addr, 0).String())
				seen := c.sees(n.pod, server)
				testkit.Check(t, seen == n.Addresses[f], "%v sees %v, want %v", to.addr, seen, n.Addresses[f])
			}
			own := testkit.Echo(t, n.ns, "tcp", netip.AddrPortFrom(n.Addresses[f], 0).String())
			seen := c.sees(n.pod, own)
			testkit.Check(t, seen == n.pods[f], "the pod's node sees %v, want %v", seen, n.pods[f])
			// Without masquerading, the machine outside answers a pod that it has a route to.
			n.network.Kept = []netip.Prefix{netip.PrefixFrom(outside, outside.BitLen())}
			c.must(n.network.Apply(n.Node, c.others(n)))
			c.ip(c.wire, fmt.Sprintf("route add %v via %v", n.Ranges[f], n.Addresses[f]))
			server := testkit.Echo(t, c.wire, "tcp", netip.AddrPortFrom(outside, 0).String())
			seen = c.sees(n.pod, server)
			testkit.Check(t, seen == n.pods[f], "kept: %v sees %v, want %v", outside, seen, n.pods[f])
			n.network.Kept = nil
			c.must(n.network.Apply(n.Node, c.others(n)))
		}
	}
}

// TestForgedTunnel has a pod, and a machine outside, pack a packet of another pod for the tunnel: the other node takes
// it from nodes alone.
func TestForgedTunnel(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: VXLAN})
	c.must(rtnl.In(c.wire).Configure("br0", rtnl.DeviceConfig{Addresses: []netip.Prefix{families[0].segment(200)},
		Up: true}))
	c.apply()
	n, other := c.nodes[0], c.nodes[1]
	device := testkit.Must(rtnl.In(other.pod).Device("eth0"))(c.t)
	var seen atomic.Int64
	testkit.WatchPackets(t, other.pod, device.Index, func(packet []byte) {
		if bytes.Contains(packet, []byte(forgery)) {
			seen.Add(1)
		}
	})
	send := func(from *netns.Namespace, to netip.Addr) {
		t.Helper()
		conn := testkit.Must(testkit.Dial(from, "udp", netip.AddrPortFrom(to, DefaultPort).String()))(c.t)
		defer conn.Close()
		testkit.Must(conn.Write(forged(n, other)))(c.t)
	}
	for _, to := range []netip.Addr{n.Addresses[0], other.Addresses[0], other.Ranges[0].Addr(),
		other.Ranges[0].Addr().Next()} {
		send(n.pod, to)
	}
	send(c.wire, other.Addresses[0])
	c.reach("after them") // in order
	got := seen.Load()
	testkit.Require(t, got == 0, "%d forged packets have arrived", got)
	send(n.ns, other.Addresses[0]) // they would have arrived
	testkit.Eventually(t, time.Minute, func() error {
		if got := seen.Load(); got != 1 {
			return fmt.Errorf("%d packets of the node have arrived, want 1", got)
		}
		return nil
	})
}

const forgery = "this comes from nobody"

// forged is a packet of a node's pod to a pod of another node, in its form in the tunnel.
func forged(from, to *node) []byte {
	packet := append([]byte{8, 0, 0, 0, networkID >> 16, networkID >> 8 & 0xff, networkID & 0xff, 0}, macOf(to.Name)...)
	packet = append(append(packet, macOf(from.Name)...), 8, 0)
	ip := []byte{0x45, 0, 0, byte(20 + 8 + len(forgery)), 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.pods[0].AsSlice()...), to.pods[0].AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	udp := []byte{0, 9, 0, 9, 0, byte(8 + len(forgery)), 0, 0}
	return slices.Concat(packet, ip, udp, []byte(forgery))
}

// TestInspect reports complete ways, incomplete ways with what they lack, and refused nodes, and changes nothing.
func TestInspect(t *testing.T) {
	for _, k := range []kind{{routing: Native}, {routing: VXLAN}} {
		t.Run(fmt.Sprint(k.routing), func(t *testing.T) {
			k.nodes = 2
			c := newCluster(t, k)
			first, second := c.nodes[0], c.nodes[1]
			inspect := func(others []Node) (text string) {
				t.Helper()
				before := c.state(first)
				ways, refused, err := first.network.Inspect(first.Node, others)
				c.must(err)
				after := c.state(first)
				testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
				for _, w := range ways {
					text += fmt.Sprintln(w.Node == second.Name, w.Range, w.Via, w.There, w.Lacks)
				}
				return text + fmt.Sprint(refused)
			}
			for _, r := range second.Ranges {
				if text := inspect(c.others(first)); !strings.Contains(text, fmt.Sprintf("true %v %v via", r, k.routing)) ||
					strings.Contains(text, " true \n") {
					t.Errorf("before it is joined: %s", text)
				}
			}
			c.apply()
			text := inspect(c.others(first))
			testkit.Check(t, strings.Count(text, " true \n") == len(second.Ranges) && strings.HasSuffix(text, "[]"),
				"joined: %s", text)
			c.ip(first.ns, fmt.Sprintf("route del %v", second.Ranges[0]))
			if text := inspect(c.others(first)); strings.Count(text, " true \n") != len(second.Ranges)-1 ||
				!strings.Contains(text, "false no route\n") {
				t.Errorf("without a route: %s", text)
			}
			bad := c.others(first)
			bad[0].Ranges = append(bad[0].Ranges, netip.MustParsePrefix("127.0.0.0/8"))
			if text := inspect(bad); !strings.Contains(text, "node "+second.Name+": its range 127.0.0.0/8 overlaps") {
				t.Errorf("a range of nobody: %s", text)
			}
		})
	}
}
