// SPDX-License-Identifier: Apache-2.0

package policy

import "maps"

// numbers gives a number to each thing that rows refer to, as long as something does. What had one keeps it, and a number that was in
// use is not given to anything else, so that rows of before and after can be side by side.
type numbers struct {
	table[Digest, uint32]
	before map[Digest]uint32 // those of rows that were there before the first compilation
	more   map[Digest]int    // references but for the first
	taken  map[uint32]bool
	last   uint32
}

func newNumbers(have Rows) numbers {
	n := numbers{table: newTable[Digest, uint32](), before: maps.Clone(have.Numbers), more: map[Digest]int{}, taken: make(map[uint32]bool, len(have.Numbers))}
	twice := map[uint32]bool{} // a process was killed that gave it from one to another
	for _, number := range have.Numbers {
		twice[number], n.taken[number] = n.taken[number], true
	}
	maps.DeleteFunc(n.before, func(_ Digest, number uint32) bool { return twice[number] })
	for k := range have.Verdicts { // a process that was killed while it changed a rule set in place has taken the digest away
		n.taken[k.Set] = true
	}
	return n
}

// ownNodes is where the numbers of the identities begin that are of the node's own addresses. The datapath takes a packet from these only
// if the node has sent it.
const ownNodes = 1 << 31

// onLink is a bit beside the identity in the rows of the link-local addresses of pods. What comes from these to pods with a device of their own
// needs a seal; an address that a rule names as a block does not.
const onLink = 1 << 30

// acquire returns the number of what a digest stands for, and whether it is new here. Each call needs a release.
func (n *numbers) acquire(d Digest) (number uint32, fresh bool) { return n.acquireFrom(d, 0) }

// acquireFrom is acquire for numbers above another one.
func (n *numbers) acquireFrom(d Digest, from uint32) (number uint32, fresh bool) {
	if number, ok := n.rows[d]; ok {
		n.more[d]++
		return number, false
	}
	number, ok := n.before[d]
	if !ok {
		for n.last++; n.taken[n.last+from]; n.last++ {
		}
		number = n.last + from
	}
	n.put(d, number)
	return number, true
}

// release undoes an acquire, and reports whether it was the last one.
func (n *numbers) release(d Digest) bool {
	if more := n.more[d]; more > 1 {
		n.more[d] = more - 1
		return false
	} else if more == 1 {
		delete(n.more, d)
		return false
	}
	n.remove(d)
	return true
}

// move gives the number of one digest to another one, which has one reference too. The one that it had goes.
func (n *numbers) move(from, to Digest) {
	number := n.rows[from]
	delete(n.before, from)
	n.remove(from)
	n.put(to, number)
}
