// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// identity is what policies can know of a peer. Addresses that no policy tells apart share one.
type identity struct {
	Kind      string            `json:",omitempty"` // pod, node or empty: an address of neither
	Namespace map[string]string `json:",omitempty"`
	Labels    map[string]string `json:",omitempty"`
	Ports     []NamedPort       `json:",omitempty"`
	OwnNode   bool              `json:",omitempty"`
	// Blocks are the blocks that the address is in, sorted.
	Blocks []string `json:",omitempty"`

	number uint32
}

// key returns a form that no other identity has.
func (i *identity) key() []byte {
	if i.Kind == "" { // as those of most addresses
		return []byte(strings.Join(i.Blocks, " "))
	}
	return canonical(i)
}

// blocks finds the blocks that a prefix is in.
type blocks struct {
	in, out map[netip.Prefix][]string // by a block's range, and by what it leaves out
	bits    [2][]int                  // lengths that occur, of IPv4 and IPv6, ascending
}

// key identifies a block.
func (b *Block) key() string {
	var s strings.Builder
	s.WriteString(b.CIDR.String())
	for _, e := range slices.SortedFunc(slices.Values(b.Except), comparePrefix) {
		s.WriteString("-" + e.String())
	}
	return s.String()
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func newBlocks(policies ...[]Policy) *blocks {
	out := &blocks{in: map[netip.Prefix][]string{}, out: map[netip.Prefix][]string{}}
	seen := map[string]bool{}
	for b := range eachBlock(policies) {
		key := b.key()
		if seen[key] {
			continue
		}
		seen[key] = true
		out.in[b.CIDR] = append(out.in[b.CIDR], key)
		for _, e := range b.Except {
			out.out[e] = append(out.out[e], key)
		}
	}
	for p := range out.prefixes() {
		bits := &out.bits[family(p.Addr())]
		if !slices.Contains(*bits, p.Bits()) {
			*bits = append(*bits, p.Bits())
		}
	}
	slices.Sort(out.bits[0])
	slices.Sort(out.bits[1])
	return out
}

// eachBlock yields the blocks of all rules.
func eachBlock(lists [][]Policy) func(yield func(*Block) bool) {
	return func(yield func(*Block) bool) {
		for _, policies := range lists {
			for i := range policies {
				for _, rules := range [][]Rule{policies[i].Ingress, policies[i].Egress} {
					for _, r := range rules {
						for _, p := range r.Peers {
							if p.Block != nil && !yield(p.Block) {
								return
							}
						}
					}
				}
			}
		}
	}
}

// prefixes yields each prefix at which the blocks that an address is in can change. Some come twice.
func (b *blocks) prefixes() func(yield func(netip.Prefix) bool) {
	return func(yield func(netip.Prefix) bool) {
		for _, m := range []map[netip.Prefix][]string{b.in, b.out} {
			for p := range m {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// of returns the blocks that a prefix is in, sorted. No block begins or ends inside it, but at a longer prefix of its own.
func (b *blocks) of(p netip.Prefix) []string {
	covering := map[string]bool{}
	for _, bits := range b.bits[family(p.Addr())] {
		if bits > p.Bits() {
			break
		}
		at := netip.PrefixFrom(p.Addr(), bits).Masked()
		for _, key := range b.in[at] {
			covering[key] = true
		}
		for _, key := range b.out[at] {
			delete(covering, key) // an exception lies inside its block, so it comes later
		}
	}
	return slices.Sorted(maps.Keys(covering))
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// hostPrefix returns the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// label notes the labels of a pod's identity.
func (c *compiler) label(i identity, index int32) {
	for ofNamespace, labels := range map[bool]map[string]string{true: i.Namespace, false: i.Labels} {
		for key, value := range labels {
			at := label{ofNamespace, key, value}
			c.labelled[at] = append(c.labelled[at], index)
		}
	}
}

// identify fills the rows of addresses.
func (c *compiler) identify() {
	put := func(p netip.Prefix, i identity) {
		i.Blocks = c.blocks.of(p)
		if i.Kind == "" && len(i.Blocks) == 0 {
			c.rows.Addresses[mappedPrefix(p)] = 0
			return
		}
		i.number, _ = c.numbers.of("identity", i.key())
		c.rows.Addresses[mappedPrefix(p)] = i.number
		if _, known := c.byNumber[i.number]; !known {
			index := int32(len(c.identities))
			c.byNumber[i.number] = index
			c.identities = append(c.identities, i)
			for _, block := range i.Blocks {
				c.inBlock[block] = append(c.inBlock[block], index)
			}
			if i.Kind == "pod" {
				c.pods = append(c.pods, index)
				c.label(i, index)
			}
		}
	}
	for p := range c.blocks.prefixes() {
		put(p, identity{})
	}
	// An IPv6 range that holds all mapped addresses does not hold those of IPv4.
	if all := netip.PrefixFrom(netip.IPv4Unspecified(), 0); len(c.blocks.bits[1]) > 0 && c.blocks.in[all] == nil {
		put(all, identity{})
	}
	for _, n := range c.snapshot.Nodes {
		for _, a := range n.Addresses {
			put(hostPrefix(a.Unmap()), identity{Kind: "node", Labels: n.Labels, OwnNode: n.Name == c.snapshot.Node})
		}
	}
	for i := range c.snapshot.Pods {
		p := &c.snapshot.Pods[i]
		if p.HostNetwork {
			continue
		}
		ports := slices.Compact(slices.SortedFunc(slices.Values(p.Ports), func(a, b NamedPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		}))
		for _, a := range p.Addresses {
			put(hostPrefix(a.Unmap()), identity{
				Kind: "pod", Namespace: c.namespaces[p.Namespace], Labels: p.Labels, Ports: ports,
			})
		}
	}
}
