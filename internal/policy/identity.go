// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
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
	byKey   map[string]*block
	covers  map[Digest]*cover
	in, out map[netip.Prefix][]*block // by a block's range, and by what it leaves out
	lengths [2][129]int               // how many prefixes of in and out have a length, of IPv4 and IPv6
	changed map[netip.Prefix]bool     // ranges of blocks that have come or gone
	ends    []netip.Prefix            // these, and their exceptions
}

func newBlocks() blocks {
	return blocks{byKey: map[string]*block{}, covers: map[Digest]*cover{}, in: map[netip.Prefix][]*block{}, out: map[netip.Prefix][]*block{}, changed: map[netip.Prefix]bool{}}
}

// acquire returns the block, which a rule has.
func (b *blocks) acquire(of *Block) *block {
	key := of.key()
	found := b.byKey[key]
	if found == nil {
		found = &block{key: key, covers: map[*cover]struct{}{}, Block: Block{of.CIDR, slices.Clone(of.Except)}}
		b.byKey[key] = found
		b.changed[of.CIDR] = true
		b.list(b.in, of.CIDR, found)
		for _, e := range of.Except {
			b.list(b.out, e, found)
		}
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
	b.changed[gone.CIDR] = true
	b.unlist(b.in, gone.CIDR, gone)
	for _, e := range gone.Except {
		b.unlist(b.out, e, gone)
	}
}

func (b *blocks) list(m map[netip.Prefix][]*block, p netip.Prefix, add *block) {
	b.ends = append(b.ends, p)
	if m[p] == nil {
		b.lengths[family(p.Addr())][p.Bits()]++
	}
	m[p] = append(m[p], add)
}

func (b *blocks) unlist(m map[netip.Prefix][]*block, p netip.Prefix, gone *block) {
	b.ends = append(b.ends, p)
	if i := slices.Index(m[p], gone); i >= 0 {
		m[p] = slices.Delete(m[p], i, i+1)
	}
	if len(m[p]) == 0 {
		delete(m, p)
		b.lengths[family(p.Addr())][p.Bits()]--
	}
}

// of returns the blocks that a prefix is in, which is at least as long as any prefix at which a block begins or ends and that it holds. found has what
// it returned for others, by the longest prefix at which a block begins or ends.
func (b *blocks) of(p netip.Prefix, found map[netip.Prefix]*cover) *cover {
	var at []netip.Prefix
	for bits, n := range b.lengths[family(p.Addr())][:p.Bits()+1] {
		if n == 0 {
			continue
		}
		if q := netip.PrefixFrom(p.Addr(), bits).Masked(); b.in[q] != nil || b.out[q] != nil {
			at = append(at, q)
		}
	}
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
	var all []*block
	for _, q := range at {
		all = append(all, b.in[q]...)
		if out := b.out[q]; len(out) > 0 { // an exception lies inside its block, so it comes later
			gone := make(map[*block]bool, len(out))
			for _, o := range out {
				gone[o] = true
			}
			all = slices.DeleteFunc(all, func(in *block) bool { return gone[in] })
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
	return b.in[p] != nil || b.out[p] != nil || p == allIPv4 && slices.ContainsFunc(b.lengths[1][:], func(n int) bool { return n > 0 })
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
	var lengths [2][]int
	for p := range b.changed {
		if l := &lengths[family(p.Addr())]; !slices.Contains(*l, p.Bits()) {
			*l = append(*l, p.Bits())
		}
	}
	for p := range all {
		for _, bits := range lengths[family(p.Addr())] {
			if bits <= p.Bits() && b.changed[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				add[p] = true
			}
		}
	}
	b.changed, b.ends = map[netip.Prefix]bool{}, nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// hostPrefix returns the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
