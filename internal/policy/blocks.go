// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// block is a range of addresses of rules: a prefix without some prefixes inside it.
type block struct {
	Block
	key    string
	index  uint64   // from 1
	covers []*cover // with it
	at     int32    // among the blocks of a set's rules
	rules  []int32  // of the set
}

// cover is the blocks that some addresses are in. Identities share it, so that an identity more costs the same whatever
// blocks there are.
type cover struct {
	id         Digest
	blocks     []*block // sorted
	identities []*identity
	within     []int32 // places of blocks of a set's rules
}

// blocks finds the blocks that a prefix is in. A look-up costs one step for each length that prefixes have.
type blocks struct {
	byKey   map[string]*block
	in, out map[netip.Prefix][]*block // whose range a prefix is, and whose it is left out of
	lengths [2][129]bool              // of these prefixes, of IPv4 and IPv6
	covers  map[Digest]*cover
	found   map[netip.Prefix]*cover // by the longest prefix at which a block begins or ends
}

func newBlocks() blocks {
	return blocks{
		byKey: map[string]*block{}, in: map[netip.Prefix][]*block{}, out: map[netip.Prefix][]*block{},
		covers: map[Digest]*cover{}, found: map[netip.Prefix]*cover{},
	}
}

// add returns the block, which a rule has.
func (b *blocks) add(of *Block) *block {
	var f form
	f.prefix(of.CIDR)
	for _, e := range slices.SortedFunc(slices.Values(of.Except), comparePrefix) {
		f.prefix(e)
	}
	key := string(f)
	found := b.byKey[key]
	if found == nil {
		found = &block{key: key, Block: *of, index: uint64(len(b.byKey) + 1)}
		b.byKey[key] = found
		b.list(b.in, of.CIDR, found)
		for _, e := range of.Except {
			b.list(b.out, e, found)
		}
	}
	return found
}

func (b *blocks) list(m map[netip.Prefix][]*block, p netip.Prefix, of *block) {
	b.lengths[family(p.Addr())][p.Bits()] = true
	m[p] = append(m[p], of)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// divides reports whether a block begins or ends at a prefix.
func (b *blocks) divides(p netip.Prefix) bool { return b.in[p] != nil || b.out[p] != nil }

// ends calls yield for each prefix at which a block begins or ends. An IPv6 range that holds all mapped addresses does
// not hold those of IPv4.
func (b *blocks) ends(yield func(netip.Prefix) bool) {
	for p := range b.in {
		if !yield(p) {
			return
		}
	}
	for p := range b.out {
		if b.in[p] == nil && !yield(p) {
			return
		}
	}
	if slices.Contains(b.lengths[1][:], true) && !b.divides(allIPv4) {
		yield(allIPv4)
	}
}

var allIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// around returns the prefixes at which blocks begin or end and that a prefix lies in, the longest last.
func (b *blocks) around(p netip.Prefix) (at []netip.Prefix) {
	for bits, any := range b.lengths[family(p.Addr())][:p.Bits()+1] {
		if !any {
			continue
		}
		if q := netip.PrefixFrom(p.Addr(), bits).Masked(); b.divides(q) {
			at = append(at, q)
		}
	}
	return at
}

// of returns the blocks that a prefix is in, which is at least as long as any prefix at which a block begins or ends
// and that it holds; nil: in none.
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

// cover returns the blocks that what is in some prefixes is in, the longest last.
func (b *blocks) cover(at []netip.Prefix) *cover {
	var all []*block
	for _, q := range at {
		all = append(all, b.in[q]...)
		if out := b.out[q]; len(out) > 0 { // an exception lies inside its range, so it comes later
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

// overlaps returns how many pairs there are of a block and a range that lies in it, a block's or an exception's.
func (b *blocks) overlaps() (n int) {
	for p := range b.ends {
		for _, q := range b.around(p) {
			n += len(b.in[q])
		}
	}
	return n
}

// hostPrefix returns the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
