// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// The shortest prefixes of a range of pods.
const (
	shortest4 = 8
	shortest6 = 16
)

// special are prefixes that a node or pod cannot have.
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

// Host lists the addresses that the host of a node has and needs, except for pods.
type Host struct {
	Local      []netip.Prefix // the addresses of its devices, with the lengths of their networks
	Reserved   []netip.Addr   // addresses of other machines that the host needs: the API server's
	ClusterIPs []netip.Addr   // addresses of Services, which a node or pod cannot have
	Tunnel     uint16         // the UDP port of the tunnel; 0: no tunnel
}

// Sound returns the other nodes, by name, with the addresses and ranges that they may claim: a Node object can claim
// anything, even the traffic of this host. If two claims conflict, this node's claim holds, or else the older node's.
// The errors are *[NodeError].
func Sound(self Node, others []Node, host Host) (sound []Node, refused []error) {
	networks := slices.DeleteFunc(slices.Clone(host.Local),
		func(p netip.Prefix) bool { return slices.ContainsFunc(self.Ranges, p.Overlaps) })
	for _, a := range host.Reserved {
		networks = append(networks, single(a))
	}
	var services, taken claims
	for _, a := range host.ClusterIPs {
		services = append(services, claim{Prefix: single(a)})
	}
	slices.SortFunc(services, claim.compare)
	for _, a := range self.Addresses {
		taken.add(claim{single(a), self.Name, true})
	}
	for _, r := range self.Ranges {
		taken.add(claim{r, self.Name, false})
	}
	for _, n := range slices.SortedFunc(slices.Values(others), older) {
		addresses, ranges := n.Addresses, n.Ranges
		n.Addresses, n.Ranges = nil, nil
		for _, a := range addresses {
			if why := host.refuseAddress(a, self, services, taken); why != "" {
				refused = append(refused, refuse(n.Name, "its address %v %s", a, why))
				continue
			}
			if !ofFamily(n.Addresses, a).IsValid() { // the others matter less, and could be as many as there are ranges
				taken.add(claim{single(a), n.Name, true})
			}
			n.Addresses = append(n.Addresses, a)
		}
		for _, r := range ranges {
			if why := refuseRange(r, networks, services, taken); why != "" {
				refused = append(refused, refuse(n.Name, "its range %v %s", r, why))
				continue
			}
			taken.add(claim{r, n.Name, false})
			n.Ranges = append(n.Ranges, r)
		}
		sound = append(sound, n)
	}
	slices.SortFunc(sound, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return sound, refused
}

// older orders nodes by age. Times are from the API server, in seconds.
func older(a, b Node) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID), cmp.Compare(a.Name, b.Name))
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// claim is a range of a node's pods, or an address at which others reach it.
type claim struct {
	netip.Prefix
	node    string
	address bool
}

func (c claim) compare(other claim) int { return c.Addr().Compare(other.Addr()) }

// claims are sorted, and do not overlap.
type claims []claim

func (c claims) overlapping(p netip.Prefix) (claim, bool) {
	i, _ := slices.BinarySearchFunc(c, claim{Prefix: p}, claim.compare)
	if i < len(c) && p.Contains(c[i].Addr()) {
		return c[i], true
	}
	if i > 0 && c[i-1].Contains(p.Addr()) {
		return c[i-1], true
	}
	return claim{}, false
}

func (c *claims) add(next claim) {
	if _, taken := c.overlapping(next.Prefix); taken {
		return
	}
	i, _ := slices.BinarySearchFunc(*c, next, claim.compare)
	*c = slices.Insert(*c, i, next)
}

// refuseAddress returns why another node cannot have an address; empty if it can. Two nodes can claim one address: the
// object of a machine that was replaced stays for a while.
func (h Host) refuseAddress(a netip.Addr, self Node, services, taken claims) string {
	if a.Zone() != "" {
		return "has a zone"
	}
	for _, s := range special {
		if s.Contains(a) {
			return "is " + s.what
		}
	}
	has := func(p netip.Prefix) bool { return p.Addr() == a }
	if slices.Contains(self.Addresses, a) || slices.ContainsFunc(h.Local, has) {
		return "is one of this node"
	}
	if _, is := services.overlapping(single(a)); is {
		return "belongs to a Service"
	}
	switch in, is := taken.overlapping(single(a)); {
	case !is || in.address:
	case in.node == self.Name:
		return "is in the range of this node's pods"
	default:
		return fmt.Sprintf("is in the range %v of node %s", in.Prefix, in.node)
	}
	return ""
}

// refuseRange returns why no route may lead to a range; empty if one may.
func refuseRange(r netip.Prefix, networks []netip.Prefix, services, taken claims) string {
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
	in, is := taken.overlapping(r)
	if is && in.address {
		return fmt.Sprintf("contains the address %v of node %s", in.Addr(), in.node)
	}
	if i := slices.IndexFunc(networks, r.Overlaps); i >= 0 {
		return fmt.Sprintf("overlaps %v, which this node's host has or needs", networks[i].Masked())
	}
	if of, is := services.overlapping(r); is {
		return fmt.Sprintf("contains the address %v of a Service", of.Addr())
	}
	if is {
		return fmt.Sprintf("overlaps %v of node %s", in.Prefix, in.node)
	}
	return ""
}
