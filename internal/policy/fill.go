// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"slices"
)

// matching is the rules of a set that match some peers, without the rules for anyone. Equal lists share one.
type matching struct {
	rules       []int32 // sorted
	named       bool    // of ports
	ofNamespace bool    // some are of NetworkPolicies
}

type filler struct {
	*compiler
	*ruleSet
	always  matching // the rules for anyone
	rest    Verdict  // of identity 0
	lists   map[string]*matching
	decided map[decision]Verdict
}

// decision is the input of a verdict: matching rules, and the peer's named ports if rules name ports.
type decision struct {
	blocks, content *matching
	ports           string
}

// fill makes the rows of a rule set: of identity 0, by the rules for anyone, and of identities that other rules match.
func (c *compiler) fill(set *ruleSet) {
	f := &filler{compiler: c, ruleSet: set, lists: map[string]*matching{}, decided: map[decision]Verdict{}}
	for n, q := range set.clauses {
		if q.anyone() {
			f.always.rules = append(f.always.rules, int32(n))
		}
	}
	if m := c.meter; m != nil {
		m.namespace, m.seen = set.namespace, map[class]bool{}
		m.of(set.namespace).Numbers++
		m.verdict(set.namespace)
	}
	f.rest = f.decide(decision{}, set.ports)
	c.rows.Verdicts[VerdictKey{set.number, 0}] = f.rest
	covers, contents := f.covers(), f.contents()
	for of, m := range contents {
		for _, i := range of.identities {
			f.row(i, decision{covers[i.in], m, ""})
		}
	}
	for in, m := range covers {
		for _, i := range in.identities {
			if (i.content == nil || contents[i.content] == nil) && f.spend(1) {
				f.row(i, decision{m, nil, ""})
			}
		}
	}
}

func (f *filler) covers() map[*cover]*matching {
	var all []*block
	for n, q := range f.clauses {
		for _, b := range q.blocks {
			if len(b.rules) == 0 {
				b.at, all = int32(len(all)), append(all, b)
			}
			if last := len(b.rules) - 1; last < 0 || b.rules[last] != int32(n) {
				b.rules = append(b.rules, int32(n))
			}
		}
	}
	var covers []*cover
	for _, b := range all {
		for _, in := range b.covers {
			if !f.spend(1) {
				break
			}
			if len(in.within) == 0 {
				covers = append(covers, in)
			}
			in.within = append(in.within, b.at)
		}
	}
	out, byBlocks := make(map[*cover]*matching, len(covers)), map[string]*matching{}
	for _, in := range covers {
		if f.exhausted() {
			return nil
		}
		key := string(places(in.within))
		if byBlocks[key] == nil {
			var rules []int32
			for _, at := range in.within {
				rules = append(rules, all[at].rules...)
			}
			byBlocks[key] = f.matching(rules)
		}
		out[in], in.within = byBlocks[key], in.within[:0]
	}
	for _, b := range all {
		b.rules = b.rules[:0]
	}
	return out
}

// contents returns the rules that match a pod or node, and rules for anyone with named ports if it has such ports.
func (f *filler) contents() map[*content]*matching {
	var found []*content
	pods, nodes := f.labelled[label{}], f.labelled[label{of: aNode}]
	for n, q := range f.clauses {
		if f.exhausted() {
			return nil
		}
		work := 0 // ClusterNetworkPolicies are free: admins write them, and each rule set has them
		if q.tier == Namespaced {
			work = 1
			f.use(f.ruleSet, 1+len(q.Peers)+q.terms) // whether or not they select somebody
		}
		match := func(all []*content, is func(*content) bool) {
			for _, of := range all {
				if !is(of) {
					continue
				}
				if !f.use(f.ruleSet, work*len(of.identities)) {
					return
				}
				if last := len(of.rules) - 1; last < 0 {
					found = append(found, of)
				} else if of.rules[last] == int32(n) {
					continue
				}
				of.rules = append(of.rules, int32(n))
			}
		}
		switch {
		case q.own:
			match(nodes, func(of *content) bool { return of.ownNode })
		case q.anyone() && q.named && f.d == Egress:
			match(pods, func(of *content) bool { return len(of.ports) > 0 })
		}
		for _, p := range q.Peers {
			switch {
			case p.Nodes != nil:
				match(nodes, func(of *content) bool { return p.Nodes.Matches(of.labels) })
			case p.Pods != nil:
				rarest := f.labelled.rarest(p.Pods)
				f.use(f.ruleSet, work*len(rarest)*(1+p.Pods.terms())/podWork)
				match(rarest, func(of *content) bool { return p.Pods.matches(of.namespace, of.labels) })
			}
		}
	}
	out := make(map[*content]*matching, len(found))
	for _, of := range found {
		if f.exhausted() {
			return nil
		}
		out[of], of.rules = f.matching(of.rules), of.rules[:0]
	}
	return out
}

func (f *filler) matching(rules []int32) *matching {
	slices.Sort(rules)
	rules = slices.Compact(rules)
	key := string(places(rules))
	m := f.lists[key]
	if m == nil {
		f.use(f.ruleSet, len(rules))
		m = &matching{rules: slices.Clone(rules)}
		for _, n := range rules {
			q := f.clauses[n]
			m.named, m.ofNamespace = m.named || q.named, m.ofNamespace || q.tier == Namespaced && !q.own
		}
		f.lists[key] = m
	}
	return m
}

// row makes the row of an identity, unless the row of identity 0 is equal.
func (f *filler) row(i *identity, of decision) {
	if f.exhausted() {
		return
	}
	ports, ofNamespace := f.ports, false
	if f.d == Egress && i.content != nil {
		ports = i.content.ports
	}
	for _, m := range []*matching{of.blocks, of.content} {
		if m == nil {
			continue
		}
		ofNamespace = ofNamespace || m.ofNamespace
		if m.named && f.d == Egress {
			var key form
			key.named(ports)
			of.ports = string(key)
		}
	}
	v, ok := f.decided[of]
	if !ok {
		v = f.decide(of, ports)
		f.decided[of] = v
	}
	if v != f.rest && f.spend(rowWork) {
		f.rows.Verdicts[VerdictKey{f.ruleSet.number, i.number}] = v
		if ofNamespace {
			f.meter.row(f.compiler, i, v)
		}
	}
}

func (f *filler) decide(of decision, ports []NamedPort) Verdict {
	rules := slices.Clone(f.always.rules)
	for _, m := range []*matching{of.blocks, of.content} {
		if m != nil {
			rules = append(rules, m.rules...)
		}
	}
	slices.Sort(rules)
	by, work := flattener{deny: f.deny, isolated: f.isolated}, 0
	for _, n := range slices.Compact(rules) {
		work++
		if q := f.clauses[n].resolve(ports); q != nil {
			work += portWork * len(q.Ports)
			by.clauses = append(by.clauses, q)
		}
	}
	if !f.use(f.ruleSet, work) {
		return Verdict{}
	}
	rest, others := by.flatten()
	for _, segments := range others {
		f.use(f.ruleSet, portWork*len(segments))
	}
	return f.verdict(rest, others)
}

func places(of []int32) []byte {
	key := make([]byte, 0, 4*len(of))
	for _, n := range of {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	return key
}
