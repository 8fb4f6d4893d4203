// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"net/netip"
)

// Limits.
const (
	// MostLabels is how many labels, and how many named ports, [Snapshot.Trim] leaves a pod.
	MostLabels = 64
	// MostOverlaps is how many pairs there may be of a block of the rules in force on a node and a range, a block's or an exception's, that lies
	// in it. Compiling takes that much time and memory: at the limit 40 ms and 20 MB.
	MostOverlaps = 1 << 18
)

// OverlapError tells that blocks overlap too much.
type OverlapError struct {
	Overlaps int
	// Most is the policy with the most blocks.
	Most Origin
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("%s: ranges of addresses lie in ranges of rules %d times, at most %d are possible for all policies of a node", e.Most, e.Overlaps, MostOverlaps)
}

// CheckOverlaps returns an *OverlapError if the blocks of the policies that select pods of this node overlap too much, pods that have no
// address yet among them.
func (s *Snapshot) CheckOverlaps() error {
	blocks, ranges := 0, 0
	for i := range s.Policies {
		b, r := s.Policies[i].ranges()
		blocks, ranges = blocks+b, ranges+r
	}
	if blocks*ranges <= MostOverlaps {
		return nil
	}
	var here []Policy
	most := -1
	for i, is := range s.Here() {
		if !is {
			continue
		}
		if here = append(here, s.Policies[i]); most < 0 || s.Policies[i].Bulk() > s.Policies[most].Bulk() {
			most = i
		}
	}
	if n := overlaps(here); n > MostOverlaps {
		return &OverlapError{n, s.Policies[most].origin()}
	}
	return nil
}

// Here tells of each policy whether it selects pods of this node, with an address or without.
func (s *Snapshot) Here() []bool {
	all := Snapshot{Node: s.Node, Namespaces: s.Namespaces, Policies: s.Policies}
	for _, p := range s.Pods {
		if p.Node == s.Node {
			p.Addresses = []netip.Addr{{}}
			all.Pods = append(all.Pods, p)
		}
	}
	here := make([]bool, len(s.Policies))
	for i, n := range all.Selected() {
		here[i] = n > 0
	}
	return here
}

// overlap is what a namespace's NetworkPolicies have to do with pairs of a block and a range that lies in it: in how many there is a block or a range of
// theirs, whoever else has it, and how many blocks these are.
type overlap struct{ pairs, blocks int }

// Overlapping returns, of the namespaces whose NetworkPolicies select pods of the node, the one whose blocks are in most of the pairs of a block
// and a range that lies in it; or, of those with at least half as many, the one with the fewest blocks: a few blocks around the many of another
// namespace are in as many pairs as these.
func (s *Snapshot) Overlapping() (most string) {
	here := Snapshot{}
	for i, is := range s.Here() {
		if is {
			here.Policies = append(here.Policies, s.Policies[i])
		}
	}
	all, pairs := here.overlaps(), 0
	for _, o := range all {
		pairs = max(pairs, o.pairs)
	}
	for namespace, o := range all {
		if 2*o.pairs >= pairs && (most == "" || o.blocks < all[most].blocks || o.blocks == all[most].blocks && namespace < most) {
			most = namespace
		}
	}
	return most
}

// overlaps returns what namespaces have to do with pairs, of those that have blocks.
func (s *Snapshot) overlaps() map[string]*overlap {
	type owners map[string]bool // by namespace; of the cluster nobody
	blockOf, rangeOf := map[string]owners{}, map[netip.Prefix]owners{}
	cidrs, all := map[string]netip.Prefix{}, map[string]*overlap{}
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Tier == Namespaced {
			all[p.Namespace] = &overlap{}
		}
		p.blocks(func(b *Block) {
			key := b.key()
			if cidrs[key] = b.CIDR; blockOf[key] == nil {
				blockOf[key] = owners{}
			}
			for _, r := range append([]netip.Prefix{b.CIDR}, b.Except...) {
				if rangeOf[r] == nil {
					rangeOf[r] = owners{}
				}
				if p.Tier == Namespaced {
					blockOf[key][p.Namespace], rangeOf[r][p.Namespace] = true, true
				}
			}
		})
	}
	in, count, lengths := map[netip.Prefix]map[string]int{}, map[netip.Prefix]int{}, [2][129]bool{} // blocks of each range
	for key, of := range blockOf {
		cidr := cidrs[key]
		if in[cidr] == nil {
			in[cidr] = map[string]int{}
			lengths[family(cidr.Addr())][cidr.Bits()] = true
		}
		count[cidr]++
		for namespace := range of {
			in[cidr][namespace]++
			all[namespace].blocks++
		}
	}
	for r, of := range rangeOf {
		for bits, there := range lengths[family(r.Addr())][:r.Bits()+1] {
			if !there {
				continue
			}
			q := netip.PrefixFrom(r.Addr(), bits).Masked()
			for namespace, n := range in[q] {
				if !of[namespace] {
					all[namespace].pairs += n
				}
			}
			for namespace := range of {
				all[namespace].pairs += count[q]
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, o *overlap) bool { return o.blocks == 0 })
	return all
}

func overlaps(policies []Policy) int {
	b := newBlocks()
	for i := range policies {
		policies[i].blocks(func(of *Block) { b.acquire(of) })
	}
	return b.overlaps()
}

// blocks calls a function for each block.
func (p *Policy) blocks(each func(*Block)) {
	for _, rules := range [][]Rule{p.Ingress, p.Egress} {
		for i := range rules {
			for _, peer := range rules[i].Peers {
				if peer.Block != nil {
					each(peer.Block)
				}
			}
		}
	}
}

// ranges returns how many blocks the policy has, and how many ranges these have.
func (p *Policy) ranges() (blocks, ranges int) {
	p.blocks(func(b *Block) {
		blocks++
		ranges += 1 + len(b.Except)
	})
	return blocks, ranges
}

// overlaps returns how many pairs there are of a block and a range that lies in it.
func (b *blocks) overlaps() (n int) {
	count := func(p netip.Prefix) {
		for bits, there := range b.lengths[family(p.Addr())][:p.Bits()+1] {
			if there > 0 {
				n += len(b.in[netip.PrefixFrom(p.Addr(), bits).Masked()])
			}
		}
	}
	for p := range b.in {
		count(p)
	}
	for p := range b.out {
		if b.in[p] == nil {
			count(p)
		}
	}
	return n
}

// checkOverlaps returns an *OverlapError if the blocks of the policies that are in force overlap too much. Those that go are there still.
func (c *Compiler) checkOverlaps() error {
	if len(c.blocks.changed) == 0 || len(c.blocks.byKey)*(len(c.blocks.in)+len(c.blocks.out)) <= MostOverlaps || c.blocks.overlaps() <= MostOverlaps {
		return nil
	}
	var all []Policy
	most, bulk := Origin{}, 0
	for _, e := range c.entries {
		if !e.in[enforced] || !e.active() {
			continue
		}
		all = append(all, e.Policy)
		if n := e.Bulk(); n > bulk {
			most, bulk = e.origin(), n
		}
	}
	if n := overlaps(all); n > MostOverlaps {
		return &OverlapError{n, most}
	}
	return nil
}
