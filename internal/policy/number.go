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

// mostNumbers is how many numbers there are: the bits above have a meaning. A change may take one for each identity.
const mostNumbers = onLink

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
		for number = n.next() + from; n.taken[number]; number = n.next() + from {
		}
	}
	n.put(d, number)
	return number, true
}

// next returns a number that may be taken. After the last one there are those again that nothing has, nor had before this change.
func (n *numbers) next() uint32 {
	if n.last++; n.last < mostNumbers {
		return n.last
	}
	n.last = 1
	n.before = nil
	clear(n.taken)
	for _, number := range n.rows {
		n.taken[number] = true
	}
	for _, had := range n.had {
		n.taken[had.value] = true
	}
	return n.last
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
