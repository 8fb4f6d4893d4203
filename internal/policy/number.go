// SPDX-License-Identifier: Apache-2.0

package policy

// numbers assigns a number to each object that rows refer to. An object keeps its number, and a number in use is not
// assigned again, so that old and new rows can coexist.
type numbers struct {
	have, given map[Digest]uint32
	taken       map[uint32]bool
	last        uint32
}

func newNumbers(have Rows, given map[Digest]uint32) numbers {
	n := numbers{have: have.Numbers, given: given, taken: make(map[uint32]bool, len(have.Numbers))}
	for _, number := range have.Numbers {
		n.taken[number] = true
	}
	return n
}

// ownNodes is the first number of identities of the node's own addresses. The datapath accepts a packet from these
// addresses only if the node has sent it.
const ownNodes = 1 << 31

// onLink is a bit beside the identity in the rows of pods' link-local addresses. Packets from these addresses to pods
// with a device of their own need a seal; an address that a rule names as a block does not.
const onLink = 1 << 30

// of returns the number of a digest, and whether it is new. A new number is above from.
func (n *numbers) of(d Digest, from uint32) (number uint32, fresh bool) {
	if number, ok := n.given[d]; ok {
		return number, false
	}
	number, ok := n.have[d]
	for !ok {
		n.last++
		number = from + n.last
		ok = !n.taken[number]
	}
	n.given[d] = number
	return number, true
}

// ruleDigest identifies a rule by its place in a policy, not by its content, so that a change of a policy leaves the
// numbers of the others.
func ruleDigest(o Origin) Digest {
	f := newForm("rule")
	f.bytes(o.key()...)
	return f.digest()
}

// Rules returns the origins of the numbers of a snapshot's rules, as far as they have numbers.
func (s *Snapshot) Rules(numbers map[Digest]uint32) map[uint32]Origin {
	rules := map[uint32]Origin{}
	note := func(o Origin) {
		if n, ok := numbers[ruleDigest(o)]; ok {
			rules[n] = o
		}
	}
	note(Origin{Reason: OwnNode})
	for i := range s.Policies {
		o := s.Policies[i].origin()
		for _, o.Direction = range []Direction{Egress, Ingress} {
			o.Reason, o.Index = DefaultDeny, 0
			note(o)
			o.Reason = ByRule
			all, _ := s.Policies[i].rules(o.Direction)
			for o.Index = range all {
				note(o)
			}
		}
	}
	return rules
}
