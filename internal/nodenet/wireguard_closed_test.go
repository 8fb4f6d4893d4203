// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// unreachable waits until a namespace learns that it cannot reach an address.
func (c *cluster) unreachable(from *netns.Namespace, to netip.Addr) {
	c.t.Helper()
	testkit.Eventually(c.t, time.Minute, func() error { // the kernel limits the rate of its answers
		_, err := testkit.Dial(from, "tcp", netip.AddrPortFrom(to, 9).String())
		if errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) {
			return nil
		}
		return fmt.Errorf("connect to %v: %w", to, err)
	})
}

// drops sends datagrams until a rule with this text has dropped one.
func (c *cluster) drops(n *node, rule string, conn net.Conn) {
	c.t.Helper()
	defer conn.Close()
	testkit.Eventually(c.t, time.Minute, func() error {
		_, _ = conn.Write(secret)
		return c.dropped(n, rule)
	})
}

// TestWireGuardGonePod deletes a pod that a pod of another node sends to. Its node has a default route, and refuses the
// packets.
func TestWireGuardGonePod(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"veth", "netkit"} {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kind{nodes: 2, routing: WireGuard, link: link})
			a, b := c.nodes[0], c.nodes[1]
			router := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
			c.client(t, "router")
			c.must(rtnl.In(b.ns).AddDefaultRoutes("eth0", router))
			c.apply()
			c.reach("joined")
			tap := c.wiretap(b)
			c.ip(b.ns, "link del pod2")
			for _, addr := range b.pods {
				c.unreachable(a.pod, addr)
			}
			tap.check(t, link)
		})
	}
}

// TestWireGuardOtherRoutes adds routes to another node's pods that are not the agent's. No packet takes one of these.
func TestWireGuardOtherRoutes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 2, routing: WireGuard})
	a, b := c.nodes[0], c.nodes[1]
	tap := c.wiretap(b)
	// A router advertisement adds the like. The route is in the way before the agent's and after it.
	c.ip(a.ns, "addr add fd00:1:2::9/64 dev eth0 nodad valid_lft 3600 preferred_lft 3600")
	c.ip(a.ns, "-6 route add fd00:1:2::/64 via 2001:db8::2 dev eth0 metric 100")
	server := testkit.Echo(t, b.pod, "udp", netip.AddrPortFrom(b.pods[1], 0).String()).String()
	for range 2 {
		c.apply()
		testkit.Must(c.roundTrip(a.pod, "udp", server, secret))(t)
	}
	c.ip(a.ns, fmt.Sprintf("-6 route add %v via 2001:db8::2 dev eth0", single(b.pods[1])))
	c.apply()
	discard := []string{netip.AddrPortFrom(b.pods[0], 9).String(), netip.AddrPortFrom(b.pods[1], 9).String()}
	c.drops(a, "ip6 daddr @far6", testkit.Must(testkit.Dial(a.pod, "udp", discard[1]))(t))
	c.must(a.network.Remove())
	c.ip(a.ns, "route add 10.1.2.0/24 via 192.0.2.2 dev eth0")
	err := a.network.Apply(a.Node, c.others(a))
	testkit.Fails(t, err, "add route to 10.1.2.0/24", "one exists and is not the agent's")
	c.drops(a, "ip daddr @far4", testkit.Must(testkit.Dial(a.pod, "udp", discard[0]))(t))
	a.Ranges = nil // its own packets are dropped before it has a range
	err = a.network.Apply(a.Node, c.others(a))
	testkit.Fails(t, err, "one exists and is not the agent's")
	c.drops(a, "ip daddr @far4", testkit.Must(testkit.Dial(a.ns, "udp", discard[0]))(t))
	tap.check(t, "with other routes")
}

// TestWireGuardClaimedPart has an older node claim a part of a younger one's range. Packets to the rest are refused, as
// are packets that claim to be from there.
func TestWireGuardClaimedPart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 3, routing: WireGuard})
	a, b, old := c.nodes[0], c.nodes[1], c.nodes[2]
	c.must(rtnl.In(a.ns).AddDefaultRoutes("eth0", b.Addresses))
	a.Created, b.Created = time.Unix(2, 0), time.Unix(3, 0)
	old.Created = time.Unix(1, 0)
	c.apply()
	c.reach("joined")
	tap := c.wiretap(b)
	old.Ranges = append(old.Ranges, netip.MustParsePrefix("10.1.2.128/25"), netip.MustParsePrefix("fd00:1:2:0:8000::/65"))
	err := a.network.Apply(a.Node, c.others(a))
	testkit.Fails(t, err, "node node-2: its range 10.1.2.0/24 overlaps 10.1.2.128/25 of node node-3")
	for _, addr := range b.pods {
		c.unreachable(a.pod, addr)
	}
	testkit.Check(t, tap.plain == nil, "in plain text %v", tap.plain)
	stranger := c.client(t, "stranger")
	c.ip(stranger, fmt.Sprintf("addr add %v dev lo", single(b.pods[0])))
	c.ip(stranger, fmt.Sprintf("route add %v via %v", a.Ranges[0], a.Addresses[0]))
	forger := net.Dialer{LocalAddr: &net.UDPAddr{IP: b.pods[0].AsSlice()}}
	c.drops(a, "ip saddr @far4", testkit.Must(netns.Get(stranger, func() (net.Conn, error) {
		return forger.Dial("udp", netip.AddrPortFrom(a.pods[0], 9).String())
	}))(t))
}

// TestWireGuardOtherAddress has a node send from an address that its Node object lacks. The peer answers that address.
// Apply and Inspect accept this.
func TestWireGuardOtherAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 2, routing: WireGuard, family: "ipv4"})
	a, b := c.nodes[0], c.nodes[1]
	c.ip(b.ns, "addr add 192.0.2.50/24 dev eth0")
	c.ip(b.ns, "route change 192.0.2.0/24 dev eth0 src 192.0.2.50")
	c.apply()
	server := testkit.Echo(t, a.pod, "udp", netip.AddrPortFrom(a.pods[0], 0).String()).String()
	for range 2 {
		testkit.Must(c.roundTrip(b.pod, "udp", server, secret))(t)
		at := testkit.Must(readWireGuard(a.ns))(t).Peers[0].Endpoint.String()
		testkit.Check(t, strings.HasPrefix(at, "192.0.2.50:"), "the peer is at %s", at)
		ways, _, err := a.network.Inspect(a.Node, c.others(a))
		testkit.Check(t, err == nil && len(ways) == 1 && ways[0].There, "%+v, %v", ways, err)
		c.must(a.network.Apply(a.Node, c.others(a)))
	}
}

// TestWireGuardClaimedNodes has a node claim the network of another node's address, which a router leads to. Packets to
// that node still reach it, other packets to the network are dropped.
func TestWireGuardClaimedNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 3, routing: WireGuard, routed: true})
	a, b, bad := c.nodes[0], c.nodes[1], c.nodes[2]
	c.apply()
	bad.Created = time.Now()
	for f, far := range []string{"ip daddr @far4", "ip6 daddr @far6"} {
		claim := families[f].routed(2).Masked()
		bad.Ranges = append(bad.Ranges, claim)
		err := a.network.Apply(a.Node, c.others(a))
		testkit.Fails(t, err, fmt.Sprintf("node node-3: its range %v contains the address %v of node node-2", claim,
			b.Addresses[f]))
		server := testkit.Echo(t, b.pod, "udp", netip.AddrPortFrom(b.pods[f], 0).String()).String()
		testkit.Must(c.roundTrip(a.pod, "udp", server, secret))(t)
		server = testkit.Echo(t, b.ns, "udp", netip.AddrPortFrom(b.Addresses[f], 0).String()).String()
		testkit.Must(c.roundTrip(a.ns, "udp", server, secret))(t)
		rest := netip.AddrPortFrom(b.Addresses[f].Next(), 9).String()
		c.drops(a, far, testkit.Must(testkit.Dial(a.pod, "udp", rest))(t))
	}
}
