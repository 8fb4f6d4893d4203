// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"mustang/internal/policy/ranges"
)

// kind tells pods from nodes.
type kind uint8

const (
	aPod kind = 1 + iota
	aNode
)

// content is what rules in force tell of a pod or a node, but for the blocks that its addresses are in. Its labels are those of one of them: no
// rule tells the others apart from it.
type content struct {
	kind       kind
	namespace  map[string]string
	labels     map[string]string
	ports      []NamedPort
	ownNode    bool
	lacks      bool // labels of a pod
	id         Digest
	by         []label // that rules name
	addresses  int
	identities map[*identity]struct{}
}

// identity is what policies can know of a peer. Addresses that no policy tells apart share one.
type identity struct {
	*content        // nil: of an address of neither
	in       *cover // nil: the address is in no block
	id       Digest
	number   uint32
	prefixes int
	fresh    bool    // it has come with this change
	lost     bool    // nothing may have its number: a prefix has none, or one has it already
	matching []int32 // rules that match by the content
	meets    *meeting
	met      *meeting // with the set that changes in place
}

// block is a range of addresses of rules.
type block struct {
	key    string
	rules  int
	covers map[*cover]struct{} // with it
	sought bool                // some identity is in it
	at     int32               // among the blocks of a set's rules
	by     []int32             // the rules
	Block
}

// cover is the blocks that some addresses are in. Identities share it, so that an identity more costs the same whatever blocks there are.
type cover struct {
	id         Digest
	blocks     []*block // sorted
	identities map[*identity]struct{}
	within     []int32 // places of blocks of a set's rules
	meets      *meeting
}

// key identifies a block.
func (b *Block) key() string {
	var f form
	f.prefix(b.CIDR)
	for _, e := range slices.SortedFunc(slices.Values(b.Except), comparePrefix) {
		f.prefix(e)
	}
	return string(f)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// blocks finds the blocks that a prefix is in.
type blocks struct {
	*ranges.Set[*block]
	byKey   map[string]*block
	covers  map[Digest]*cover
	changed map[netip.Prefix]bool // ranges of blocks that have come or gone
	ends    []netip.Prefix        // these, and their exceptions
}

func newBlocks() blocks {
	return blocks{Set: ranges.New[*block](), byKey: map[string]*block{}, covers: map[Digest]*cover{}, changed: map[netip.Prefix]bool{}}
}

// acquire returns the block, which a rule has.
func (b *blocks) acquire(of *Block) *block {
	key := of.key()
	found := b.byKey[key]
	if found == nil {
		found = &block{key: key, covers: map[*cover]struct{}{}, Block: Block{of.CIDR, slices.Clone(of.Except)}}
		b.byKey[key] = found
		b.Add(found, of.CIDR, of.Except)
		b.change(of)
	}
	found.rules++
	return found
}

// release undoes an acquire.
func (b *blocks) release(gone *block) {
	if gone.rules--; gone.rules > 0 {
		return
	}
	delete(b.byKey, gone.key)
	b.Remove(gone, gone.CIDR, gone.Except)
	b.change(&gone.Block)
}

// change notes that a block has come or gone.
func (b *blocks) change(of *Block) {
	b.changed[of.CIDR] = true
	b.ends = append(append(b.ends, of.CIDR), of.Except...)
}

// of returns the blocks that a prefix is in, which is at least as long as any prefix at which a block begins or ends and that it holds. found has what
// it returned for others, by the longest prefix at which a block begins or ends.
func (b *blocks) of(p netip.Prefix, found map[netip.Prefix]*cover) *cover {
	at := b.Around(p)
	if len(at) == 0 {
		return nil
	}
	last := at[len(at)-1]
	in, ok := found[last]
	if !ok {
		in = b.cover(at)
		found[last] = in
	}
	return in
}

// cover returns the blocks that what is in some prefixes is in, the longest last.
func (b *blocks) cover(at []netip.Prefix) *cover {
	all := b.Of(at)
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
		c = &cover{id: id, blocks: all, identities: map[*identity]struct{}{}}
		b.covers[id] = c
		for _, in := range all {
			in.covers[c] = struct{}{}
		}
	}
	return c
}

// leave takes an identity out of the blocks that it is in.
func (b *blocks) leave(i *identity) {
	if i.in == nil {
		return
	}
	if delete(i.in.identities, i); len(i.in.identities) == 0 {
		delete(b.covers, i.in.id)
		for _, in := range i.in.blocks {
			delete(in.covers, i.in)
		}
	}
}

// begins reports whether the blocks that an address is in can change at a prefix. An IPv6 range that holds all mapped addresses does
// not hold those of IPv4.
func (b *blocks) begins(p netip.Prefix) bool {
	return b.Divides(p) || p == allIPv4 && b.HasIPv6()
}

var allIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// touched adds the prefixes to a set, of all that there are, whose blocks may have changed, and forgets which have.
func (b *blocks) touched(all map[netip.Prefix]*identity, add map[netip.Prefix]bool) {
	if len(b.changed) == 0 {
		return
	}
	add[allIPv4] = true
	for _, p := range b.ends {
		add[p] = true
	}
	var lengths []int
	for p := range b.changed {
		if !slices.Contains(lengths, p.Bits()) {
			lengths = append(lengths, p.Bits())
		}
	}
	for p := range all {
		for _, bits := range lengths {
			if bits <= p.Bits() && b.changed[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				add[p] = true
			}
		}
	}
	b.changed, b.ends = map[netip.Prefix]bool{}, nil
}

// hostPrefix returns the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
