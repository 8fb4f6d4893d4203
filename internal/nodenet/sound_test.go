// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestClaims has a node claim ranges and addresses that are not its own: no route leads there, it is masqueraded as ever, the error
// names the node, and the others are reached.
func TestClaims(t *testing.T) {
	c := newCluster(t, kind{nodes: 3, family: "ipv4", routing: Auto})
	n, bad := c.nodes[0], c.nodes[1]
	n.network.Reserved = []netip.Addr{netip.MustParseAddr("203.0.113.5")}
	c.ip(n.ns, "link add dock type bridge")
	c.ip(n.ns, "addr add 172.17.0.1/16 dev dock")
	c.ip(n.ns, "link set dock up")
	far := Node{Name: "node-9", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}
	own, address := bad.Ranges, bad.Addresses
	kept := func() string { return c.run(n.ns, "nft list set inet mustang-agent kept4") }
	bad.Ranges = nil
	c.must(n.network.Apply(n.Node, append(c.others(n), far)))
	without := kept()
	claims := map[string]string{ // a range, or an address, and what stands in the error
		"0.0.0.0/1": "/8", "128.0.0.0/2": "/8", "0.0.0.0/8": "unspecified", "127.0.0.0/9": "loopback", "169.254.169.254/32": "link-local",
		"224.0.0.0/8": "multicast", "192.0.2.3/32": "of node node-3", "203.0.113.9/32": "of node node-9", "192.0.2.1/32": "of node node-1",
		"192.0.2.128/25": "192.0.2.0/24", "172.16.0.0/12": "172.17.0.0/16", "203.0.113.0/29": "203.0.113.5/32", "10.1.1.128/25": "10.1.1.0/24",
		"127.0.0.1": "loopback", "0.0.0.0": "unspecified", "255.255.255.255": "broadcast", "224.0.0.1": "multicast", "169.254.1.1": "link-local",
		"192.0.2.1": "of this node", "172.17.0.1": "of this node", "10.1.1.7": "of this node's pods",
	}
	for claim, want := range claims {
		bad.Ranges, bad.Addresses = own, address
		if r, err := netip.ParsePrefix(claim); err == nil {
			bad.Ranges = []netip.Prefix{r}
		} else {
			bad.Addresses = []netip.Addr{netip.MustParseAddr(claim)}
		}
		err := n.network.Apply(n.Node, append(c.others(n), far))
		if err == nil || !strings.Contains(err.Error(), "node node-2: ") || !strings.Contains(err.Error(), claim) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "node node-3: ") {
			t.Errorf("%s: error %v, want one about node-2 with %q", claim, err, want)
		}
		if got := c.ip(n.ns, "-4 route show proto 109"); strings.TrimSpace(got) != "10.1.3.0/24 via 192.0.2.3 dev eth0 onlink" {
			t.Errorf("%s: there are the routes\n%s", claim, got)
		}
		if got := kept(); bad.Ranges[0] != own[0] && got != without {
			t.Errorf("%s is not masqueraded: %s\nwithout it %s", claim, got, without)
		}
	}
}

// TestSound has ranges that two nodes claim be the first one's, and takes the networks of this node's own pods for no others'.
func TestSound(t *testing.T) {
	node := func(name, address string, ranges ...string) Node {
		n := Node{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
		for _, r := range ranges {
			n.Ranges = append(n.Ranges, netip.MustParsePrefix(r))
		}
		return n
	}
	self := node("a", "10.0.0.1", "10.1.1.0/24", "fd00:1:1::/64")
	host := Host{Local: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/16"), netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fe80::1/64")}}
	others := []Node{node("d", "10.0.0.4", "10.1.2.0/24", "10.1.4.0/24"), node("c", "2001:db8::3", "fd00::/8"), node("b", "10.0.0.2", "10.1.2.0/25", "fd00:1:2::/64")}
	sound, refused := Sound(self, others, host)
	want := []Node{node("b", "10.0.0.2", "10.1.2.0/25", "fd00:1:2::/64"), node("c", "2001:db8::3"), node("d", "10.0.0.4", "10.1.4.0/24")}
	if fmt.Sprint(sound) != fmt.Sprint(want) || len(refused) != 2 {
		t.Errorf("%v, %v, want %v", sound, refused, want)
	}
	if !slices.Equal(others[0].Ranges, node("d", "10.0.0.4", "10.1.2.0/24", "10.1.4.0/24").Ranges) {
		t.Errorf("what was given is changed: %v", others)
	}
}
