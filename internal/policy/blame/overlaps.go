// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"

	"mustang/internal/policy"
	"mustang/internal/policy/ranges"
)

// So many ranges on a node are much, and so many blocks of one namespace around a range besides the first.
const (
	manyRanges = 1 << 14
	manyAround = 1 << 2
)

// Overlaps returns, of the namespaces whose NetworkPolicies select pods of the node, those to blame for most of the pairs of a block and a range
// that lies in it: one at least, and others that are to blame for half as many if they have to go, too. A pair of a range and a block of the same namespace is its own. Of others it is the owner's of the range, the more the larger the part
// that all ranges are of what is much, and the owner's of the block, the more blocks around this range it has; one block around the ranges of others is no fault.
// There is none if those of ClusterNetworkPolicies are too many by themselves.
func Overlaps(s policy.Snapshot) (gone []string) {
	var here []policy.Policy
	cluster := s
	cluster.Policies = nil
	for i, is := range s.Here() {
		if is {
			here = append(here, s.Policies[i])
			if s.Policies[i].Tier != policy.Namespaced {
				cluster.Policies = append(cluster.Policies, s.Policies[i])
			}
		}
	}
	if cluster.CheckOverlaps() != nil {
		return nil
	}
	if gone = longest(here); len(gone) > 0 {
		return gone
	}
	o := overlappingOf(here)
	blame := o.blame()
	sum := 0.0
	for i := range blame { // sums of the same differ by their order
		blame[i] = math.Round(blame[i])
		sum += blame[i]
	}
	names := slices.SortedFunc(slices.Values(o.names), func(a, b string) int {
		return cmp.Or(cmp.Compare(blame[o.index[b]], blame[o.index[a]]), cmp.Compare(a, b))
	})
	for _, name := range names {
		n := blame[o.index[name]]
		if len(gone) > 0 && (sum <= policy.MostOverlaps || 2*n < blame[o.index[gone[0]]]) {
			break
		}
		gone, sum = append(gone, name), sum-n
	}
	return gone
}

// longest returns the namespaces with the most blocks, as many as have to go for all to be few enough to compare.
func longest(here []policy.Policy) (gone []string) {
	of, sum := map[string]int{}, 0
	for i := range here {
		if p := &here[i]; p.Tier == policy.Namespaced {
			p.Blocks(func(*policy.Block) { of[p.Namespace]++; sum++ })
		}
	}
	for sum > 2*policy.MostOverlaps {
		most := slices.MaxFunc(slices.Collect(maps.Keys(of)), func(a, b string) int { return cmp.Or(cmp.Compare(of[a], of[b]), cmp.Compare(b, a)) })
		gone, sum = append(gone, most), sum-of[most]
		delete(of, most)
	}
	return gone
}

// overlapping is which namespaces have which blocks and ranges. Those of ClusterNetworkPolicies are nobody's.
type overlapping struct {
	names   []string
	index   map[string]int // of names
	rangeOf map[netip.Prefix][]int
	layers  map[netip.Prefix]*layer // by the range of blocks
	in      *ranges.Set[*layer]
}

// layer is the blocks of one range: how many there are, and how many some namespaces have.
type layer struct {
	blocks int
	who    []int
	has    []float64
}

// nobody has the blocks of ClusterNetworkPolicies.
const nobody = -1

// add adds a block that a namespace has.
func (l *layer) add(who int) {
	i := slices.Index(l.who, who)
	if i < 0 {
		i = len(l.who)
		l.who, l.has = append(l.who, who), append(l.has, 0)
	}
	l.has[i]++
}

func overlappingOf(policies []policy.Policy) *overlapping {
	o := &overlapping{index: map[string]int{}, rangeOf: map[netip.Prefix][]int{}, layers: map[netip.Prefix]*layer{}, in: ranges.New[*layer]()}
	blockOf := map[string][]int{}
	for i := range policies {
		p, who := &policies[i], nobody
		if p.Tier == policy.Namespaced {
			who = o.number(p.Namespace)
		}
		p.Blocks(func(b *policy.Block) {
			l := o.layer(b.CIDR)
			key := blockText(b)
			if of, known := blockOf[key]; !known || !slices.Contains(of, who) {
				if blockOf[key] = append(of, who); !known {
					l.blocks++
				}
				if who != nobody {
					l.add(who)
				}
			}
			for _, r := range append([]netip.Prefix{b.CIDR}, b.Except...) {
				if of := o.rangeOf[r]; !slices.Contains(of, who) {
					o.rangeOf[r] = append(of, who)
				}
			}
		})
	}
	return o
}

// number returns the number of a namespace.
func (o *overlapping) number(namespace string) int {
	who, known := o.index[namespace]
	if !known {
		who = len(o.names)
		o.index[namespace], o.names = who, append(o.names, namespace)
	}
	return who
}

// layer returns that of a range.
func (o *overlapping) layer(at netip.Prefix) *layer {
	l := o.layers[at]
	if l == nil {
		l = &layer{}
		o.layers[at] = l
		o.in.Add(l, at, nil)
	}
	return l
}

// blame returns in how many pairs each namespace is to blame.
func (o *overlapping) blame() []float64 {
	all, around, who := make([]float64, len(o.names)), make([]float64, len(o.names)), []int{}
	brought := square(float64(len(o.rangeOf)) / manyRanges)
	for r, owners := range o.rangeOf {
		blocks := 0.0
		who = who[:0]
		for _, l := range o.in.Of(o.in.Around(r)) {
			blocks += float64(l.blocks)
			for k, i := range l.who {
				if around[i] == 0 {
					who = append(who, i)
				}
				around[i] += l.has[k]
			}
		}
		most := 0.0 // of the other namespace with the most
		for _, i := range who {
			if beyond := square((around[i] - 1) / manyAround); !slices.Contains(owners, i) {
				most = max(most, beyond)
				all[i] += around[i] * beyond / (beyond + brought)
			}
		}
		for _, i := range owners {
			if i != nobody {
				all[i] += around[i] + (blocks-around[i])*brought/(brought+most)
			}
		}
		for _, i := range who {
			around[i] = 0
		}
	}
	return all
}

func square(n float64) float64 { return n * n }
