// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

type block struct {
	Block
	key    string
	covers []*cover // with it
	at     int32    // among the blocks of a set's rules
	rules  []int32  // of the set
}

// cover is the set of blocks that contain some addresses. Identities share it.
type cover struct {
	id         Digest
	blocks     []*block // sorted
	identities []*identity
	within     []int32 // places of blocks of a set's rules
}

// blocks finds the blocks that contain a prefix. A look-up takes one step for each prefix length in use.
type blocks struct {
	byKey   map[string]*block
	edges   map[netip.Prefix]*edge
	lengths [2][129]bool // of their prefixes, of IPv4 and IPv6
	covers  map[Digest]*cover
	found   map[netip.Prefix]*cover // by the longest prefix with an edge
}

// edge is a prefix where blocks begin, or where an exception of blocks begins.
type edge struct{ in, out []*block }

func (b *blocks) add(of *Block) *block {
	var f form
	f.prefix(of.CIDR)
	for _, e := range slices.SortedFunc(slices.Values(of.Except), netip.Prefix.Compare) {
		f.prefix(e)
	}
	found := b.byKey[string(f)]
	if found == nil {
		found = &block{key: string(f), Block: *of}
		b.byKey[found.key] = found
		at := b.edge(of.CIDR)
		at.in = append(at.in, found)
		for _, e := range of.Except {
			at := b.edge(e)
			at.out = append(at.out, found)
		}
	}
	return found
}

func (b *blocks) edge(p netip.Prefix) *edge {
	if b.edges[p] == nil {
		b.edges[p] = &edge{}
		b.lengths[family(p.Addr())][p.Bits()] = true
	}
	return b.edges[p]
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// ends yields each prefix with an edge. An IPv6 range that contains all mapped addresses does not contain IPv4.
func (b *blocks) ends(yield func(netip.Prefix) bool) {
	for p := range b.edges {
		if !yield(p) {
			return
		}
	}
	allIPv4 := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if slices.Contains(b.lengths[1][:], true) && b.edges[allIPv4] == nil {
		yield(allIPv4)
	}
}

func (b *blocks) around(p netip.Prefix) (at []netip.Prefix) {
	for bits, any := range b.lengths[family(p.Addr())][:p.Bits()+1] {
		if !any {
			continue
		}
		if q := netip.PrefixFrom(p.Addr(), bits).Masked(); b.edges[q] != nil {
			at = append(at, q)
		}
	}
	return at
}

// of returns the blocks that contain a prefix; nil: none. No longer prefix with an edge lies inside the prefix.
func (b *blocks) of(p netip.Prefix) *cover {
	at := b.around(p)
	if len(at) == 0 {
		return nil
	}
	last := at[len(at)-1]
	in, ok := b.found[last]
	if !ok {
		in = b.cover(at)
		b.found[last] = in
	}
	return in
}

// cover returns the blocks that contain an address inside nested prefixes, the longest last.
func (b *blocks) cover(at []netip.Prefix) *cover {
	var all []*block
	for _, q := range at {
		all = append(all, b.edges[q].in...)
		if out := b.edges[q].out; len(out) > 0 { // an exception lies inside its range, so it comes later
			gone := make(map[*block]bool, len(out))
			for _, o := range out {
				gone[o] = true
			}
			all = slices.DeleteFunc(all, func(of *block) bool { return gone[of] })
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *block) int { return cmp.Compare(a.key, b.key) })
	f := newForm("cover")
	for _, in := range all {
		f.text(in.key)
	}
	id := f.digest()
	c := b.covers[id]
	if c == nil {
		c = &cover{id: id, blocks: all}
		b.covers[id] = c
		for _, in := range all {
			in.covers = append(in.covers, c)
		}
	}
	return c
}

// overlaps returns the number of pairs of a block and a range inside it, of a block or an exception.
func (b *blocks) overlaps() (n int) {
	for p := range b.ends {
		for _, q := range b.around(p) {
			n += len(b.edges[q].in)
		}
	}
	return n
}
