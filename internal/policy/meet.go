// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"slices"
)

// meeting is the rules of a set that match some identities, besides those for anyone. What the same rules match shares one, so that a range
// that somebody's rules bring costs a set of others no more if it has many rules of a block that holds the range.
type meeting struct {
	rules []int32 // sorted
	named bool    // of ports
}

// list returns the rules. Of no meeting there are none.
func (m *meeting) list() []int32 {
	if m == nil {
		return nil
	}
	return m.rules
}

// meetings are those of a rule set.
type meetings struct {
	*Compiler
	set   *ruleSet
	of    map[string]*meeting // by rules
	cover map[string]*meeting // by the blocks of the set that a cover has
	both  map[both]*meeting
}

// both is a meeting by blocks, and rules that match by what a pod or node is.
type both struct {
	*meeting
	rules string
}

// match returns the identities that rules of a set match besides those for anyone: all, or those among some that are fresh. Their field
// meets tells which rules.
func (c *Compiler) match(set *ruleSet, some []*identity) (matched []*identity) {
	m := meetings{c, set, map[string]*meeting{}, map[string]*meeting{}, map[both]*meeting{}}
	return m.contents(some, m.blocks(some))
}

// blocks returns the identities that are in blocks of rules.
func (m *meetings) blocks(some []*identity) (matched []*identity) {
	for _, i := range some {
		if i.in != nil {
			for _, b := range i.in.blocks {
				b.sought = true
			}
		}
	}
	var all []*block
	for n, q := range m.set.clauses {
		for _, b := range q.blocks {
			if some != nil && !b.sought {
				continue
			}
			if len(b.by) == 0 {
				b.at, all = int32(len(all)), append(all, b)
			}
			if last := len(b.by) - 1; last < 0 || b.by[last] != int32(n) {
				b.by = append(b.by, int32(n))
			}
		}
	}
	var covers []*cover
	meet := func(in *cover, b *block) {
		if !m.spend(m.set, 1) {
			return
		}
		if len(in.within) == 0 {
			covers = append(covers, in)
		}
		in.within = append(in.within, b.at)
	}
	if some == nil {
		for _, b := range all {
			for in := range b.covers {
				meet(in, b)
			}
		}
	}
	for _, i := range some {
		if i.in == nil || len(i.in.within) > 0 {
			continue
		}
		for _, b := range i.in.blocks {
			if len(b.by) > 0 {
				meet(i.in, b)
			}
		}
	}
	join := func(i *identity) {
		if i.in != nil && i.in.meets != nil && m.spend(m.set, 1) {
			i.meets, matched = i.in.meets, append(matched, i)
		}
	}
	for _, in := range covers {
		in.meets = m.ofCover(in, all)
		if some == nil {
			for i := range in.identities {
				join(i)
			}
		}
	}
	for _, i := range some {
		join(i)
		if i.in != nil {
			for _, b := range i.in.blocks {
				b.sought = false
			}
		}
	}
	for _, in := range covers {
		in.within, in.meets = in.within[:0], nil
	}
	for _, b := range all {
		b.by = b.by[:0]
	}
	return matched
}

// ofCover returns the meeting with all that is in the blocks of a cover.
func (m *meetings) ofCover(in *cover, all []*block) *meeting {
	key := string(places(in.within))
	found := m.cover[key]
	if found == nil {
		var rules []int32
		for _, at := range in.within {
			rules = append(rules, all[at].by...)
		}
		found = m.meeting(rules)
		m.cover[key] = found
	}
	return found
}

// meeting returns the meeting of rules.
func (m *meetings) meeting(rules []int32) *meeting {
	m.use(m.set, len(rules))
	slices.Sort(rules)
	rules = slices.Compact(rules)
	key := string(places(rules))
	found := m.of[key]
	if found == nil {
		found = &meeting{rules, slices.ContainsFunc(rules, func(n int32) bool { return m.set.clauses[n].named })}
		m.of[key] = found
	}
	return found
}

// ask notes the work of looking at the peers of a rule, whether or not they select somebody.
func (m *meetings) ask(q *clause, some []*identity) {
	switch n := 1 + len(q.peers) + q.terms; {
	case q.tier != Namespaced:
	case some == nil:
		m.use(m.set, n)
	case len(some) <= few:
		m.work += n * len(some) // of this change alone: it would have been n
	default:
		m.work += n
	}
}

// few is how many identities are compared with each rule of each rule set. Of more, those are found that the rules match.
const few = 16

// contents adds the identities that rules match by what a pod or node is to those in blocks of rules.
func (m *meetings) contents(some, matched []*identity) []*identity {
	var found []*identity
	add := func(i *identity, n int) {
		work := 1
		if m.set.clauses[n].tier != Namespaced { // its author is who runs the cluster, and each rule set has it
			work = 0
		}
		if !m.use(m.set, work) {
			return
		}
		if at := len(i.matching); at == 0 {
			found = append(found, i)
		} else if i.matching[at-1] == int32(n) {
			return
		}
		i.matching = append(i.matching, int32(n))
	}
	for n, q := range m.set.clauses {
		if m.exhausted() {
			break
		}
		m.ask(q, some)
		switch {
		case q.anyone && !(q.named && m.set.d == Egress):
		case q.anyone && some != nil:
			for _, i := range some {
				if i.content != nil && len(i.ports) > 0 {
					add(i, n)
				}
			}
		case q.anyone:
			for _, i := range m.identities {
				if i.content != nil && len(i.ports) > 0 {
					add(i, n)
				}
			}
		case some != nil && len(some) <= few:
			for _, i := range some {
				if q.matches(i.content) {
					add(i, n)
				}
			}
		default:
			m.members(m.set, q, func(i *identity) {
				if some == nil || i.fresh {
					add(i, n)
				}
			})
		}
	}
	for _, i := range found {
		if m.exhausted() {
			i.matching, i.meets = i.matching[:0], nil // nothing of this set is in the next one
			continue
		}
		if i.meets == nil {
			matched = append(matched, i)
		}
		key := both{i.meets, string(places(i.matching))}
		if i.meets = m.both[key]; i.meets == nil {
			i.meets = m.meeting(slices.Concat(key.meeting.list(), i.matching))
			m.both[key] = i.meets
		}
		i.matching = i.matching[:0]
	}
	return matched
}

// places returns a form of numbers.
func places(of []int32) []byte {
	key := make([]byte, 0, 4*len(of))
	for _, n := range of {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	return key
}
