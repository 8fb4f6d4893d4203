// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// overlay is two nodes whose programs send packets between pods past the hosts' stacks.
type overlay struct {
	*cluster
	datapaths []*datapath.Datapath
}

// way is how packets go between nodes: with outer6 over IPv6, and by a router.
type way struct {
	routing Routing
	outer6  bool
	link    string // empty: veth
}

func (w way) String() string {
	return fmt.Sprint(w.routing, "/", map[bool]string{false: "ipv4", true: "ipv6"}[w.outer6])
}

func newOverlay(t testing.TB, w way) *overlay {
	t.Helper()
	testkit.RequireKernel(t, 6, 6)
	o := &overlay{cluster: newCluster(t,
		kind{nodes: 2, routing: w.routing, routed: w.outer6, outer6: w.outer6, link: w.link})}
	for _, n := range o.nodes {
		d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: kept.Root(t)}))(t)
		t.Cleanup(func() { testkit.Check(t, d.Close() == nil, "the datapath cannot be closed") })
		o.datapaths = append(o.datapaths, d)
		o.attach(n, d)
		n.network.Remotes = func(ways []Remote) error {
			var rows []datapath.Remote
			for _, w := range ways {
				rows = append(rows, datapath.Remote(w))
			}
			_, err := d.Remotes().Apply(t.Context(), rows)
			return err
		}
	}
	o.apply()
	return o
}

func (o *overlay) attach(n *node, d *datapath.Datapath) {
	o.t.Helper()
	testkit.Must(d.Uplinks().Put(o.t.Context(), n.ns, "eth0"))(o.t)
	_, _, err := d.Endpoints().Put(o.t.Context(), datapath.EndpointSpec{Namespace: n.pod, IfName: "eth0", Host: n.ns})
	o.must(err)
	o.t.Cleanup(func() {
		_, err := d.Remotes().Apply(o.t.Context(), nil)
		testkit.Check(o.t, err == nil, "ways to other nodes: %v", err)
	})
}

// counts are a node's packets that its programs sent to other nodes and delivered from them, and that its stack
// forwarded.
type counts struct{ sent, received, forwarded uint64 }

func (o *overlay) counts(i int) (n counts) {
	o.t.Helper()
	for _, c := range testkit.Must(o.datapaths[i].Flows().Counters())(o.t) {
		switch c.Name {
		case "to_remote":
			n.sent = c.Packets
		case "from_remote":
			n.received = c.Packets
		}
	}
	n.forwarded = forwarded(o.t, o.nodes[i].ns)
	return n
}

var forwardedNames = regexp.MustCompile(`(?m)^(?:Ip6OutForwDatagrams|IpForwDatagrams)\s+(\d+)`)

func forwarded(t testing.TB, ns *netns.Namespace) (sum uint64) {
	t.Helper()
	for _, m := range forwardedNames.FindAllStringSubmatch(testkit.Command(t, ns, "nstat -asz"), -1) {
		sum += testkit.Must(strconv.ParseUint(m[1], 10, 64))(t)
	}
	return sum
}

// exchange sends TCP streams and datagrams of all sizes between the pods.
func (o *overlay) exchange(family int) {
	o.t.Helper()
	from, to := o.nodes[0], o.nodes[1]
	at := netip.AddrPortFrom(to.pods[family], 0).String()
	tcp, udp := testkit.Echo(o.t, to.pod, "tcp", at).String(), testkit.Echo(o.t, to.pod, "udp", at).String()
	for _, size := range []int{1, 1000, 1 << 20} {
		client, err := o.roundTrip(from.pod, "tcp", tcp, make([]byte, size))
		testkit.Check(o.t, err == nil && client.Addr() == from.pods[family], "tcp, %d bytes: %v, client %v", size, err,
			client)
	}
	for _, size := range []int{1, 1000, o.payload(from, to.pods[family])} {
		client, err := o.roundTrip(from.pod, "udp", udp, make([]byte, size))
		testkit.Check(o.t, err == nil && client.Addr() == from.pods[family], "udp, %d bytes: %v, client %v", size, err,
			client)
	}
}

// eachWay runs a test for each way and family of pods.
func eachWay(t *testing.T, test func(t *testing.T, o *overlay, family int)) {
	for _, w := range []way{{routing: VXLAN}, {routing: VXLAN, outer6: true}, {routing: Native}} {
		o := newOverlay(t, w)
		for family, name := range []string{"ipv4", "ipv6"} {
			t.Run(fmt.Sprint(w, "/", name), func(t *testing.T) {
				o.t = t
				test(t, o, family)
			})
		}
		o.t = t
	}
}

// TestRemotePods counts the packets between pods of two nodes: the programs carry all of them, the stacks none.
func TestRemotePods(t *testing.T) {
	eachWay(t, func(t *testing.T, o *overlay, family int) {
		o.carried(t, family)
		o.segmented(t, family)
	})
}

// segmented sends a UDP GSO packet, which the wire keeps whole: its receiver gets each segment.
func (o *overlay) segmented(t *testing.T, family int) {
	t.Helper()
	const segments, size = 8, 1000
	at := netip.AddrPortFrom(o.nodes[1].pods[family], 0)
	var server, client *net.UDPConn
	o.must(o.nodes[1].pod.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	defer server.Close()
	o.must(o.nodes[0].pod.Do(func() (err error) {
		client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
		return err
	}))
	defer client.Close()
	raw := testkit.Must(client.SyscallConn())(t)
	var optErr error
	o.must(raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
	}))
	o.must(optErr)
	testkit.Must(client.Write(make([]byte, segments*size)))(t)
	o.must(server.SetReadDeadline(time.Now().Add(time.Minute)))
	for i := range segments {
		n, err := server.Read(make([]byte, 2*size))
		testkit.Require(t, err == nil && n == size, "segment %d: %d bytes, %v", i, n, err)
	}
}

// TestRemoteLinks is TestRemotePods with other links.
func TestRemoteLinks(t *testing.T) {
	for _, link := range []string{"netkit", "netkit-l2", "bridge"} {
		for _, routing := range []Routing{VXLAN, Native} {
			t.Run(link+"/"+string(routing), func(t *testing.T) {
				testkit.RequireRoot(t)
				testkit.RequireMode(t, testkit.Must(podlink.Lookup(link))(t).Probe())
				o := newOverlay(t, way{routing: routing, link: link})
				for family := range families {
					o.carried(t, family)
				}
			})
		}
	}
}

func (o *overlay) carried(t *testing.T, family int) {
	t.Helper()
	before := []counts{o.counts(0), o.counts(1)}
	o.exchange(family)
	for i := range o.nodes {
		now := o.counts(i)
		sent, received := now.sent-before[i].sent, now.received-before[i].received
		testkit.Check(t, sent > 20 && received > 20 && now.forwarded == before[i].forwarded,
			"node %d: %d packets sent, %d received by programs, %d forwarded by the stack", i, sent, received,
			now.forwarded-before[i].forwarded)
	}
}

// TestRemoteWays looks at the ways of a node whose network changes so that programs could not go there.
func TestRemoteWays(t *testing.T) {
	c := newCluster(t, kind{nodes: 2, routing: VXLAN, routed: true})
	n := c.nodes[0]
	var got []Remote
	n.network.Remotes = func(ways []Remote) error { got = ways; return nil }
	want := func(what string, number, mtu int) {
		t.Helper()
		c.must(n.network.Apply(n.Node, c.others(n)))
		testkit.Require(t, len(got) == number, "%s: %d ways, want %d: %+v", what, len(got), number, got)
		inspected, _, err := n.network.Inspect(n.Node, c.others(n))
		c.must(err)
		for _, w := range inspected {
			testkit.Check(t, strings.HasSuffix(w.Via, " by eBPF") == (number > 0), "%s: Inspect: %+v", what, w)
		}
		for _, w := range got {
			testkit.Check(t, w.NextHop == families[0].router(1).Addr() && w.MTU == mtu && w.Node == c.nodes[1].Addresses[0],
				"%s: %+v", what, w)
		}
	}
	want("by a router", 2, 1450)
	c.ip(n.ns, "route add 198.51.2.0/24 via 198.51.1.1 mtu 1400")
	want("a route with an MTU", 2, 1350)
	c.ip(n.ns, "route replace 198.51.2.0/24 nexthop via 198.51.1.1 nexthop via 198.51.1.9")
	want("several next hops", 0, 0)
	c.ip(n.ns, "route replace 198.51.2.0/24 via 198.51.1.1 mtu 1400")
	c.ip(n.ns, "link set eth0 arp off")
	want("no neighbours", 0, 0)
	c.ip(n.ns, "link set eth0 arp on")
	want("neighbours", 2, 1350)
	c.ip(n.ns, "xfrm policy add dir out src 198.51.1.2 dst 198.51.2.2 tmpl proto esp mode transport")
	want("IPsec", 0, 0)
	c.must(n.network.Remove())
	testkit.Check(t, len(got) == 0, "ways after Remove: %+v", got)
}
