// SPDX-License-Identifier: Apache-2.0

package policy

// numbers gives a number to each thing that rows refer to. What had one keeps it, and a number that was in use is not
// given to anything else, so that rows of before and after can be side by side.
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

// ownNodes is where the numbers of the identities begin that are of the node's own addresses. The datapath takes a
// packet from these only if the node has sent it.
const ownNodes = 1 << 31

// onLink is a bit beside the identity in the rows of the link-local addresses of pods. What comes from these to pods
// with a device of their own needs a seal; an address that a rule names as a block does not.
const onLink = 1 << 30

// of returns the number of what a digest stands for, and whether it is new here. A new one is above from.
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

// Rules returns what the numbers of the rules of a snapshot mean, as far as they have any.
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
