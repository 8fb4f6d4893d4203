// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
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

// Overlapping returns, of the namespaces whose NetworkPolicies select pods of the node, the one to blame for most of the pairs of a block and a range
// that lies in it. If there are more ranges than a node has room for anyhow, it is the one with the most. A pair of a range and a block of the same
// namespace is its own. Of others it is the owner's of the range, the more the larger its share of all the ranges that a node has room for, and
// the owner's of the block, the more blocks around this range it has; one block around the ranges of others is no fault.
func (s *Snapshot) Overlapping() (most string) {
	here := Snapshot{}
	for i, is := range s.Here() {
		if is {
			here.Policies = append(here.Policies, s.Policies[i])
		}
	}
	o := here.overlapping()
	blame := o.ranges
	if len(o.rangeOf) <= mostRanges {
		blame = o.blame()
	}
	for i := range blame { // sums of the same differ by their order
		blame[i] = math.Round(blame[i])
	}
	for i, n := range blame {
		if most == "" || n > blame[o.index[most]] || n == blame[o.index[most]] && o.names[i] < most {
			most = o.names[i]
		}
	}
	return most
}

// mostRanges is how many ranges a node has room for, or somewhat less.
const mostRanges = 1 << 16

// overlapping is which namespaces have which blocks and ranges. Those of ClusterNetworkPolicies are nobody's.
type overlapping struct {
	names   []string
	index   map[string]int // of names
	ranges  []float64      // how many each has
	rangeOf map[netip.Prefix][]int
	in      map[netip.Prefix]*layer // the blocks of a range
	lengths [2][129]bool            // of these ranges
}

// layer is the blocks of one range: how many there are, and how many some namespaces have.
type layer struct {
	blocks int
	who    []int
	has    []float64
}

// add adds a block that a namespace has.
func (l *layer) add(who int) {
	i := slices.Index(l.who, who)
	if i < 0 {
		i = len(l.who)
		l.who, l.has = append(l.who, who), append(l.has, 0)
	}
	l.has[i]++
}

func (s *Snapshot) overlapping() *overlapping {
	o := &overlapping{index: map[string]int{}, rangeOf: map[netip.Prefix][]int{}, in: map[netip.Prefix]*layer{}}
	blockOf := map[string][]int{}
	for i := range s.Policies {
		p := &s.Policies[i]
		who := -1
		if p.Tier == Namespaced {
			var known bool
			if who, known = o.index[p.Namespace]; !known {
				who = len(o.names)
				o.index[p.Namespace], o.names, o.ranges = who, append(o.names, p.Namespace), append(o.ranges, 0)
			}
		}
		p.blocks(func(b *Block) {
			at, key := b.CIDR, b.key()
			if o.in[at] == nil {
				o.in[at] = &layer{}
				o.lengths[family(at.Addr())][at.Bits()] = true
			}
			if of, known := blockOf[key]; !known || !slices.Contains(of, who) {
				if blockOf[key] = append(of, who); !known {
					o.in[at].blocks++
				}
				if who >= 0 {
					o.in[at].add(who)
				}
			}
			for _, r := range append([]netip.Prefix{at}, b.Except...) {
				if of := o.rangeOf[r]; !slices.Contains(of, who) {
					o.rangeOf[r] = append(of, who)
					if who >= 0 {
						o.ranges[who]++
					}
				}
			}
		})
	}
	return o
}

// blame returns in how many pairs each namespace is to blame.
func (o *overlapping) blame() []float64 {
	all, around, who := make([]float64, len(o.names)), make([]float64, len(o.names)), []int{}
	for r, owners := range o.rangeOf {
		blocks, share := 0.0, 0.0 // of the owner with the most ranges
		who = who[:0]
		for bits, there := range o.lengths[family(r.Addr())][:r.Bits()+1] {
			if !there {
				continue
			}
			if l := o.in[netip.PrefixFrom(r.Addr(), bits).Masked()]; l != nil {
				blocks += float64(l.blocks)
				for k, i := range l.who {
					if around[i] == 0 {
						who = append(who, i)
					}
					around[i] += l.has[k]
				}
			}
		}
		for _, i := range owners {
			if i >= 0 {
				share = max(share, o.ranges[i]/mostRanges)
			}
		}
		layers := 0.0 // beyond the first one, of the other namespace with the most
		for _, i := range who {
			if beyond := around[i] - 1; !slices.Contains(owners, i) {
				layers = max(layers, beyond)
				all[i] += around[i] * beyond / max(beyond+share, 1)
			}
		}
		for _, i := range owners {
			if i >= 0 {
				all[i] += around[i] + (blocks-around[i])*share/(share+layers)
			}
		}
		for _, i := range who {
			around[i] = 0
		}
	}
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
