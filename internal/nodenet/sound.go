// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// The shortest prefix of a range of pods.
const (
	shortest4 = 8
	shortest6 = 16
)

// special are what no node and no pod can have.
var special = []struct {
	netip.Prefix
	what string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"}, {netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"}, {netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"}, {netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"}, {netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
}

// Host is what the host of a node has and needs besides pods.
type Host struct {
	// Local are the addresses of its devices, with the lengths of their networks.
	Local []netip.Prefix
	// Reserved are addresses outside that it needs: that of the API server.
	Reserved []netip.Addr
}

// Sound returns the other nodes, by name, with those addresses and ranges that can be theirs: a Node object can claim anything, the
// traffic of this host too. Of ranges that overlap, the first by name stays. The errors are *[NodeError].
func Sound(self Node, others []Node, host Host) (sound []Node, refused []error) {
	var owners []owner
	for _, a := range self.Addresses {
		owners = append(owners, owner{a, self.Name})
	}
	for _, n := range slices.SortedFunc(slices.Values(others), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }) {
		claimed := n.Addresses
		n.Addresses = nil
		for _, a := range claimed {
			if why := host.refuseAddress(a, self); why != "" {
				refused = append(refused, refuse(n.Name, "its address %v %s", a, why))
				continue
			}
			if !ofFamily(n.Addresses, a).IsValid() { // the others matter less, and could be as many as there are ranges
				owners = append(owners, owner{a, n.Name})
			}
			n.Addresses = append(n.Addresses, a)
		}
		sound = append(sound, n)
	}
	slices.SortFunc(owners, func(a, b owner) int { return a.Compare(b.Addr) })
	networks := slices.DeleteFunc(slices.Clone(host.Local), func(p netip.Prefix) bool { return slices.ContainsFunc(self.Ranges, p.Overlaps) })
	for _, a := range host.Reserved {
		networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
	}
	taken := slices.Clone(self.Ranges)
	for i, n := range sound {
		sound[i].Ranges = nil
		for _, r := range n.Ranges {
			if why := refuseRange(r, owners, networks, taken); why != "" {
				refused = append(refused, refuse(n.Name, "its range %v %s", r, why))
				continue
			}
			taken, sound[i].Ranges = append(taken, r), append(sound[i].Ranges, r)
		}
	}
	return sound, refused
}

// NodeError says what of a node is left out, and why.
type NodeError struct{ Node, Text string }

func (e *NodeError) Error() string { return "node " + e.Node + ": " + e.Text }

func refuse(node, format string, args ...any) error {
	return &NodeError{node, fmt.Sprintf(format, args...)}
}

// owner has an address by which others reach it.
type owner struct {
	netip.Addr
	node string
}

// refuseAddress tells why another node cannot have an address; empty if it can.
func (h Host) refuseAddress(a netip.Addr, self Node) string {
	for _, s := range special {
		if s.Contains(a) {
			return "is " + s.what
		}
	}
	switch has := func(p netip.Prefix) bool { return p.Addr() == a }; {
	case slices.Contains(self.Addresses, a) || slices.ContainsFunc(h.Local, has):
		return "is one of this node"
	case slices.ContainsFunc(self.Ranges, func(p netip.Prefix) bool { return p.Contains(a) }):
		return "is in the range of this node's pods"
	}
	return ""
}

// refuseRange tells why no route may lead to a range; empty if one may.
func refuseRange(r netip.Prefix, owners []owner, networks, taken []netip.Prefix) string {
	shortest := shortest4
	if r.Addr().Is6() {
		shortest = shortest6
	}
	if r.Bits() < shortest {
		return fmt.Sprintf("is larger than a /%d", shortest)
	}
	for _, s := range special {
		if s.Overlaps(r) {
			return fmt.Sprintf("overlaps %v, which is %s", s.Prefix, s.what)
		}
	}
	first, _ := slices.BinarySearchFunc(owners, r.Addr(), func(o owner, a netip.Addr) int { return o.Compare(a) })
	if first < len(owners) && r.Contains(owners[first].Addr) {
		return fmt.Sprintf("contains the address %v of node %s", owners[first].Addr, owners[first].node)
	}
	if i := slices.IndexFunc(networks, r.Overlaps); i >= 0 {
		return fmt.Sprintf("overlaps %v, which this node's host has or needs", networks[i].Masked())
	}
	if i := slices.IndexFunc(taken, r.Overlaps); i >= 0 {
		return fmt.Sprintf("overlaps %v of another node", taken[i])
	}
	return ""
}
