// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// overlay is two nodes whose programs send packets between pods past the hosts' stacks.
type overlay struct {
	*cluster
	datapaths []*datapath.Datapath
}

// way is how packets go between nodes. Of the tunnel, the outer family is that of the nodes' addresses.
type way struct {
	routing Routing
	outer6  bool
}

func (w way) String() string {
	return fmt.Sprint(w.routing, "/", map[bool]string{false: "ipv4", true: "ipv6"}[w.outer6])
}

func newOverlay(t testing.TB, w way) *overlay {
	t.Helper()
	testkit.RequireKernel(t, 6, 6)
	o := &overlay{cluster: newCluster(t, kind{nodes: 2, routing: w.routing, outer6: w.outer6})}
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
	_, err := d.Uplinks().Put(o.t.Context(), n.ns, "eth0")
	o.must(err)
	_, _, err = d.Endpoints().Put(o.t.Context(), datapath.EndpointSpec{Namespace: n.pod, IfName: "eth0", Host: n.ns})
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
		testkit.Check(o.t, err == nil && client.Addr() == from.pods[family], "tcp, %d bytes: %v, client %v", size, err, client)
	}
	for _, size := range []int{1, 1000, o.payload(from, to.pods[family])} {
		client, err := o.roundTrip(from.pod, "udp", udp, make([]byte, size))
		testkit.Check(o.t, err == nil && client.Addr() == from.pods[family], "udp, %d bytes: %v, client %v", size, err, client)
	}
}

// ways are all ways with the families of pods.
func eachWay(t *testing.T, test func(t *testing.T, o *overlay, family int)) {
	for _, w := range []way{{VXLAN, false}, {VXLAN, true}, {Native, false}} {
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
		before := []counts{o.counts(0), o.counts(1)}
		o.exchange(family)
		for i := range o.nodes {
			now := o.counts(i)
			sent, received := now.sent-before[i].sent, now.received-before[i].received
			testkit.Check(t, sent > 20 && received > 20 && now.forwarded == before[i].forwarded,
				"node %d: %d packets sent, %d received by programs, %d forwarded by the stack", i, sent, received,
				now.forwarded-before[i].forwarded)
		}
	})
}
