// SPDX-License-Identifier: Apache-2.0

package policy

// overlaps returns how many pairs there are of a block and a range that lies in it, or a lesser number that is too many.
func overlaps(policies func(yield func(*entry) bool)) int {
	b := newBlocks()
	for e := range policies {
		e.blocks(func(of *Block) {
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

// blocks calls a function for each block of the rules.
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

// checkOverlaps returns a *LimitError if the blocks of the policies that are in force overlap too much. Those that go are there still.
func (c *Compiler) checkOverlaps() error {
	if len(c.blocks.changed) == 0 || len(c.blocks.byKey)*c.blocks.Ends() <= MostOverlaps || c.blocks.Overlaps() <= MostOverlaps {
		return nil
	}
	if n := overlaps(c.active(nil)); n > MostOverlaps {
		return &LimitError{Largest: largest(c.active(nil)), What: "overlaps of ranges", Number: n, Limit: MostOverlaps}
	}
	return nil
}
