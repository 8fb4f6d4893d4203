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
	*compiler
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

// match returns the identities that rules of a set match besides those for anyone. Their field meets tells which rules.
func (c *compiler) match(set *ruleSet) (matched []*identity) {
	m := meetings{c, set, map[string]*meeting{}, map[string]*meeting{}, map[both]*meeting{}}
	return m.contents(m.blocks())
}

// blocks returns the identities that are in blocks of rules.
func (m *meetings) blocks() (matched []*identity) {
	var all []*block
	for n, q := range m.set.clauses {
		for _, b := range q.blocks {
			if len(b.by) == 0 {
				b.at, all = int32(len(all)), append(all, b)
			}
			if last := len(b.by) - 1; last < 0 || b.by[last] != int32(n) {
				b.by = append(b.by, int32(n))
			}
		}
	}
	var covers []*cover
	for _, b := range all {
		for _, in := range b.covers {
			if !m.spend(1) {
				break
			}
			if len(in.within) == 0 {
				covers = append(covers, in)
			}
			in.within = append(in.within, b.at)
		}
	}
	for _, in := range covers {
		meets := m.ofCover(in, all)
		for _, i := range in.identities {
			if m.spend(1) {
				i.meets, matched = meets, append(matched, i)
			}
		}
		in.within = in.within[:0]
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

// contents adds the identities that rules match by what a pod or node is to those in blocks of rules.
func (m *meetings) contents(matched []*identity) []*identity {
	var found []*identity
	for n, q := range m.set.clauses {
		if m.exhausted() {
			break
		}
		work := 0 // the author of a ClusterNetworkPolicy is who runs the cluster, and each rule set has it
		if q.tier == Namespaced {
			work = 1
			m.use(m.set, 1+len(q.peers)+q.terms) // whether or not they select somebody
		}
		m.members(m.set, q, func(of *content) {
			for _, i := range of.identities {
				if !m.use(m.set, work) {
					return
				}
				if at := len(i.matching); at == 0 {
					found = append(found, i)
				} else if i.matching[at-1] == int32(n) {
					continue
				}
				i.matching = append(i.matching, int32(n))
			}
		})
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
