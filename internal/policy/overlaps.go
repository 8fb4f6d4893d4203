// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
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

// overlaps returns how many pairs there are of a block and a range that lies in it, or a lesser number that is too many.
func overlaps(policies []Policy) int {
	b := newBlocks()
	for i := range policies {
		policies[i].Blocks(func(of *Block) {
			if len(b.byKey) <= MostOverlaps {
				b.acquire(of)
			}
		})
	}
	if len(b.byKey) > MostOverlaps { // each lies in itself
		return len(b.byKey)
	}
	return b.Overlaps()
}

// Blocks calls a function for each block of the rules.
func (p *Policy) Blocks(each func(*Block)) {
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
	p.Blocks(func(b *Block) {
		blocks++
		ranges += 1 + len(b.Except)
	})
	return blocks, ranges
}

// checkOverlaps returns an *OverlapError if the blocks of the policies that are in force overlap too much. Those that go are there still.
func (c *Compiler) checkOverlaps() error {
	if len(c.blocks.changed) == 0 || len(c.blocks.byKey)*c.blocks.Ends() <= MostOverlaps || c.blocks.Overlaps() <= MostOverlaps {
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
