// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// setKey makes a new key for a node.
func (n *node) setKey(t testing.TB) {
	t.Helper()
	key := testkit.Must(LoadKey(t.TempDir()))(t)
	n.network.Encryption, n.Key = Encryption{Key: key, Port: WireGuardPort}, key.Public()
}

// secret is in what pods send.
var secret = bytes.Repeat([]byte("plain text! "), 8)

// wiretap counts packets of WireGuard on a node's uplink, and finds packets between pods in plain text.
type wiretap struct {
	mu     sync.Mutex
	sealed int
	plain  []string
}

func (c *cluster) wiretap(n *node) *wiretap {
	c.t.Helper()
	w := &wiretap{}
	uplink := testkit.Must(rtnl.In(n.ns).Device("eth0"))(c.t)
	var ranges []netip.Prefix
	for _, n := range c.nodes {
		ranges = append(ranges, n.Ranges...)
	}
	testkit.WatchPackets(c.t, n.ns, uplink.Index, func(packet []byte) {
		w.mu.Lock()
		defer w.mu.Unlock()
		from, to, port := ends(packet)
		if port == WireGuardPort {
			w.sealed++
		}
		in := func(a netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		if in(from) || in(to) || bytes.Contains(packet, secret[:12]) {
			w.plain = append(w.plain, from.String()+" to "+to.String())
		}
	})
	return w
}

func (w *wiretap) check(t testing.TB, what string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	testkit.Check(t, w.sealed > 0 && w.plain == nil, "%s: %d packets of WireGuard, and in plain text %v", what, w.sealed,
		w.plain)
}

// ends returns the addresses of an Ethernet frame with IP, and its destination port if it is UDP.
func ends(frame []byte) (from, to netip.Addr, port uint16) {
	size, proto, l4 := 0, byte(0), 0
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_IP && len(frame) >= 42:
		size, proto, l4 = 4, frame[23], 14+int(frame[14]&15)*4
		from, to = netip.AddrFrom4([4]byte(frame[26:])), netip.AddrFrom4([4]byte(frame[30:]))
	case kind == unix.ETH_P_IPV6 && len(frame) >= 62:
		size, proto, l4 = 16, frame[20], 54
		from, to = netip.AddrFrom16([16]byte(frame[22:])), netip.AddrFrom16([16]byte(frame[38:]))
	}
	if size > 0 && proto == unix.IPPROTO_UDP && len(frame) >= l4+4 {
		port = binary.BigEndian.Uint16(frame[l4+2:])
	}
	return from, to, port
}

// TestWireGuard joins nodes by WireGuard, over IPv4 on a segment and over IPv6 through a router. Pods reach each other
// in both families with the largest packets, and nothing between pods is on the wire in plain text. Applied again,
// nothing changes.
func TestWireGuard(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]kind{
		"over IPv4": {nodes: 3, routing: WireGuard}, "over IPv6": {nodes: 2, routing: WireGuard, routed: true, outer6: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, k)
			var taps []*wiretap
			for _, n := range c.nodes {
				taps = append(taps, c.wiretap(n))
			}
			c.apply()
			c.reach("joined")
			for i, n := range c.nodes {
				taps[i].check(t, n.Name)
				stop := c.changes(n)
				c.must(n.network.Apply(n.Node, c.others(n)))
				testkit.Check(t, len(stop()) == 0, "%s: applied again, something changed", n.Name)
				ways, refused, err := n.network.Inspect(n.Node, c.others(n))
				testkit.Check(t, err == nil && refused == nil && len(ways) == 2*(k.nodes-1), "%v, %v, %v", ways, refused, err)
				for _, w := range ways {
					testkit.Check(t, w.There, "%v", w)
				}
				late := testkit.Must(n.network.WithoutHandshake())(t)
				testkit.Check(t, late == nil, "without a handshake: %v", late)
			}
		})
	}
}
