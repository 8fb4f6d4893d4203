// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	os.Exit(kept.Main(m, testkit.CheckLeaks))
}

// cluster is some nodes on a segment, or on one segment each with a router between them. Each node has a pod.
type cluster struct {
	t     testing.TB
	wire  *netns.Namespace
	nodes []*node
	pods  int // that there have been
}

type node struct {
	Node
	ns, pod *netns.Namespace
	pods    []netip.Addr // of the pod
	network *Network
}

// families are the addresses of both families as functions of a node's number and a number in it: the nodes' addresses,
// on one segment or on a segment each, and the pods' addresses.
var families = []struct {
	segment, routed, router func(node int) netip.Prefix
	pods                    func(node int) netip.Prefix
}{{
	segment: func(n int) netip.Prefix { return prefix("192.0.2.%d/24", n) },
	routed:  func(n int) netip.Prefix { return prefix("198.51.%d.2/24", n) },
	router:  func(n int) netip.Prefix { return prefix("198.51.%d.1/24", n) },
	pods:    func(n int) netip.Prefix { return prefix("10.1.%d.0/24", n) },
}, {
	segment: func(n int) netip.Prefix { return prefix("2001:db8::%d/64", n) },
	routed:  func(n int) netip.Prefix { return prefix("2001:db8:%d::2/64", n) },
	router:  func(n int) netip.Prefix { return prefix("2001:db8:%d::1/64", n) },
	pods:    func(n int) netip.Prefix { return prefix("fd00:1:%d::/64", n) },
}}

func prefix(format string, n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(format, n)) }

// kind is the kind of a cluster.
type kind struct {
	nodes   int
	routed  bool // a router is between the nodes
	routing Routing
	family  string // "ipv4", "ipv6", or both
	outer6  bool   // the nodes have no IPv4 address for each other
	link    string // of the pods; empty: veth
}

func (k kind) has(v6 bool) bool { return k.family == "" || (k.family == "ipv6") == v6 }

func newCluster(t testing.TB, k kind) *cluster {
	t.Helper()
	testkit.RequireRoot(t)
	c := &cluster{t: t, wire: testkit.Namespace(t, "wire")}
	if k.routed {
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			c.must(rtnl.In(c.wire).SetSysctl(key, "1"))
		}
	} else {
		c.ip(c.wire, "link add br0 type bridge mcast_snooping 0")
		c.ip(c.wire, "link set br0 up")
	}
	for i := 1; i <= k.nodes; i++ {
		c.addNode(k, i)
	}
	return c
}

func (c *cluster) addNode(k kind, i int) {
	c.t.Helper()
	n := &node{Node: Node{Name: fmt.Sprint("node-", i)}, ns: testkit.Namespace(c.t, fmt.Sprint("node", i))}
	n.network = New(Options{Host: n.ns, Routing: k.routing, Masquerade: true})
	if k.routing == WireGuard {
		testkit.RequireMode(c.t, ProbeWireGuard())
		n.setKey(c.t)
	}
	port := fmt.Sprint("port", i)
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: n.ns, Name: "eth0"}, rtnl.VethEnd{Namespace: c.wire, Name: port},
		podlink.DefaultMTU))
	var own, router []netip.Prefix
	var hops []netip.Addr
	for f, of := range families {
		if !k.has(f == 1) {
			continue
		}
		address := of.segment(i)
		if k.routed {
			address, router, hops = of.routed(i), append(router, of.router(i)), append(hops, of.router(i).Addr())
		}
		own, n.Addresses, n.Ranges = append(own, address), append(n.Addresses, address.Addr()), append(n.Ranges, of.pods(i))
	}
	if k.outer6 {
		n.Addresses = n.Addresses[1:]
	}
	if !k.routed {
		c.ip(c.wire, "link set "+port+" master br0")
	}
	c.must(rtnl.In(c.wire).Configure(port, rtnl.DeviceConfig{Addresses: router, Up: true}))
	c.must(rtnl.In(n.ns).Configure("eth0", rtnl.DeviceConfig{Addresses: own, Up: true}))
	c.must(rtnl.In(n.ns).AddDefaultRoutes("eth0", hops))
	c.nodes = append(c.nodes, n)
	c.addPod(n, k)
}

func (c *cluster) addPod(n *node, k kind) {
	c.t.Helper()
	mode := testkit.Must(podlink.Lookup(cmp.Or(k.link, "veth")))(c.t)
	network := podlink.Network{Host: n.ns, MTU: podlink.DefaultMTU}
	network.MTU -= k.routing.overhead(n.Addresses[0])
	for _, r := range n.Ranges {
		gateway := r.Addr().Next()
		network.Gateways = append(network.Gateways, netip.PrefixFrom(gateway, r.Bits()))
		n.pods = append(n.pods, gateway.Next())
	}
	c.must(mode.Setup(network))
	n.pod = testkit.Namespace(c.t, "pod-"+n.Name)
	c.pods++
	testkit.Must(mode.Create(network, podlink.Pod{Namespace: n.pod, IfName: "eth0", HostIfName: fmt.Sprint("pod", c.pods),
		Addresses: n.pods}))(c.t)
}

func (c *cluster) must(err error) {
	c.t.Helper()
	testkit.Succeed(c.t, err)
}

func (c *cluster) ip(ns *netns.Namespace, args string) string {
	c.t.Helper()
	return c.run(ns, "ip "+args)
}

func (c *cluster) run(ns *netns.Namespace, command string) string {
	c.t.Helper()
	return testkit.Command(c.t, ns, command)
}

func (c *cluster) others(n *node) (others []Node) {
	for _, o := range c.nodes {
		if o != n {
			others = append(others, o.Node)
		}
	}
	return others
}

func (c *cluster) apply() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.must(n.network.Apply(n.Node, c.others(n)))
	}
}

// reach has each pod reach each pod of another node and be seen with its own address there, by TCP and by UDP packets
// as large as its device takes. Each node also reaches each pod, and each pod each node.
func (c *cluster) reach(what string) {
	c.t.Helper()
	for _, to := range c.nodes {
		for f, addr := range to.pods {
			tcp := testkit.Echo(c.t, to.pod, "tcp", netip.AddrPortFrom(addr, 0).String())
			udp := testkit.Echo(c.t, to.pod, "udp", netip.AddrPortFrom(addr, 0).String())
			for _, from := range c.nodes {
				if from == to {
					continue
				}
				for network, at := range map[string]netip.AddrPort{"tcp": tcp, "udp": udp} {
					client, err := c.roundTrip(from.pod, network, at.String(), make([]byte, c.payload(from, addr)))
					testkit.Check(c.t, err == nil && client.Addr() == from.pods[f],
						"%s: %s from %v: %v, client %v", what, network, from.pods[f], err, client)
				}
				_, err := c.roundTrip(from.ns, "tcp", tcp.String(), []byte("x"))
				testkit.Check(c.t, err == nil, "%s: %s to %v: %v", what, from.Name, addr, err)
			}
		}
	}
}

// roundTrip is [testkit.RoundTrip], again where a neighbour did not answer within the kernel's three seconds, as on a
// busy machine, or handshakes of WireGuard met: the next ones follow after 5 s.
func (c *cluster) roundTrip(from *netns.Namespace, network, to string, payload []byte) (client netip.AddrPort,
	err error) {
	c.t.Helper()
	client, err = testkit.RoundTrip(c.t, from, network, to, payload)
	for range 4 {
		timeout := net.Error(nil)
		if late := errors.As(err, &timeout) && timeout.Timeout(); !late && !errors.Is(err, unix.EHOSTUNREACH) {
			break
		}
		client, err = testkit.RoundTrip(c.t, from, network, to, payload)
	}
	return client, err
}

// payload is the payload of the largest datagram that a pod sends in one packet.
func (c *cluster) payload(n *node, to netip.Addr) int {
	device := testkit.Must(rtnl.In(n.pod).Device("eth0"))(c.t)
	if to.Is6() {
		return device.MTU - 40 - 8
	}
	return device.MTU - 20 - 8
}

// state is the state of a node without its pods: routes, devices, addresses, neighbours, forwarding entries.
func (c *cluster) state(n *node) string {
	c.t.Helper()
	var out strings.Builder
	testkit.Eventually(c.t, time.Minute, func() error { // link-local addresses come by themselves
		if out := c.ip(n.ns, "-6 addr show tentative"); out != "" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	testkit.RequireTool(c.t, "nft")
	const routes6 = "-6 route show table all"
	testkit.Eventually(c.t, time.Minute, func() error { // local routes come a moment after their addresses
		was := c.ip(n.ns, routes6)
		time.Sleep(100 * time.Millisecond)
		if now := c.ip(n.ns, routes6); now != was {
			return fmt.Errorf("%s\nwas\n%s", now, was)
		}
		return nil
	})
	out.WriteString(c.run(n.ns, "nft -a list ruleset"))
	for _, args := range []string{"-4 route show table all", routes6, "-d link", "addr", "neigh show nud permanent"} {
		out.WriteString(c.ip(n.ns, args))
	}
	return distinct(out.String())
}

// sees returns the address that a server sees of a client. On a loaded machine a neighbour may be found late.
func (c *cluster) sees(from *netns.Namespace, server netip.AddrPort) (seen netip.Addr) {
	c.t.Helper()
	testkit.Eventually(c.t, time.Minute, func() error {
		at, err := testkit.RoundTrip(c.t, from, "tcp", server.String(), []byte("x"))
		seen = at.Addr()
		return err
	})
	return seen
}

// distinct returns the lines of a text, each once and without ip's errors about pods that other tests delete meanwhile:
// the kernel then lists some things twice.
func distinct(text string) string {
	had := map[string]bool{"Error: Peer netns reference is invalid.": true, "": true}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if bare := strings.TrimSpace(line); !had[bare] {
			had[bare] = true
			out.WriteString(line)
		}
	}
	return out.String()
}

// changes starts to listen to changes of a node's devices, addresses, routes, permanent neighbours and forwarding
// entries, and returns a function that stops it and lists them.
func (c *cluster) changes(n *node) (stop func() []string) {
	c.t.Helper()
	var socket *nl.NetlinkSocket
	c.must(n.ns.Do(func() (err error) {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
			unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	}))
	return func() (lines []string) {
		defer socket.Close()
		c.must(socket.SetReceiveTimeout(&unix.Timeval{Usec: 10_000}))
		for {
			messages, _, err := socket.Receive()
			if errors.Is(err, unix.EAGAIN) {
				return lines
			}
			c.must(err)
			for _, m := range messages {
				isNeighbour := m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH
				if neigh, err := netlink.NeighDeserialize(m.Data); isNeighbour && err == nil &&
					neigh.State&netlink.NUD_PERMANENT == 0 {
					continue // the kernel has learned, or forgotten, one
				}
				lines = append(lines, fmt.Sprintf("type %d: %x", m.Header.Type, m.Data))
			}
		}
	}
}
