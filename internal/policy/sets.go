// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

// prepared is a policy in one direction.
type prepared struct {
	id      Digest // of the policy and the direction
	clauses []*clause
	deny    uint32 // rule of the default deny
	named   bool
}

// ruleSet is what the policies that select a pod say in a direction. Pods that the same policies select share one.
type ruleSet struct {
	number    uint32
	namespace string // of the NetworkPolicies; "" if there are none
	d         Direction
	clauses   []*clause
	always    []int32 // clauses that match anyone
	deny      uint32
	isolated  bool
	ports     []NamedPort // the pods' own, on ingress
}

// prepare makes the clauses of a policy.
func (c *compiler) prepare(e *entry) {
	for _, d := range []Direction{Egress, Ingress} {
		rules, ok := e.rules(d)
		if !ok {
			continue
		}
		f := newForm("direction")
		f.bytes(e.id[:]...)
		f.bytes(byte(d))
		q := &prepared{id: f.digest(), clauses: make([]*clause, 0, len(rules))}
		origin := e.origin()
		origin.Direction, origin.Reason = d, DefaultDeny
		if e.Tier == Namespaced {
			q.deny = c.number(origin)
		}
		origin.Reason = ByRule
		for origin.Index = range rules {
			r := c.clause(&rules[origin.Index], origin)
			q.clauses = append(q.clauses, r)
			q.named = q.named || r.named
		}
		e.prepared[d] = q
	}
}

// setOf returns the rule set of a pod, and makes it if it is new; 0 if no policy selects the pod.
func (c *compiler) setOf(p *pod, d Direction) uint32 {
	f, selecting, named := newForm("set"), false, false
	for _, e := range p.by {
		if q := e.prepared[d]; q != nil {
			f.bytes(q.id[:]...)
			selecting, named = true, named || q.named
		}
	}
	var ports []NamedPort
	if named && d == Ingress { // they are the pod's own; on egress they are the peer's
		ports = p.Ports
		f.named(ports)
	}
	id := f.digest()
	if !selecting {
		return 0
	}
	set := c.sets[id]
	if set == nil {
		set = &ruleSet{d: d, ports: ports}
		set.number, _ = c.numbers.of(id, 0)
		c.sets[id] = set
		c.compose(set, p.by)
		c.fill(set)
	}
	return set.number
}

// compose puts the rules of policies together.
func (c *compiler) compose(set *ruleSet, by []*entry) {
	judged := slices.ContainsFunc(by, func(e *entry) bool { return e.JudgesNode && e.prepared[set.d] != nil })
	for _, e := range by {
		q := e.prepared[set.d]
		if q == nil {
			continue
		}
		if e.Tier == Namespaced && !set.isolated {
			set.deny, set.isolated, set.namespace = q.deny, true, e.Namespace
			if !judged {
				set.clauses = append(set.clauses, &clause{rule: c.number(Origin{Reason: OwnNode}), tier: Namespaced, own: true})
			}
		}
		set.clauses = append(set.clauses, q.clauses...)
	}
	slices.SortStableFunc(set.clauses, func(a, b *clause) int { return cmp.Compare(a.tier, b.tier) })
	for n, q := range set.clauses {
		if q.anyone {
			set.always = append(set.always, int32(n))
		}
	}
}

// fill makes the rows of a rule set. The rules that hold for anyone make the row of identity 0; the identities that other
// rules match get rows of their own. Identities that the same rules match are decided about once.
func (c *compiler) fill(set *ruleSet) {
	c.meter.begin(set)
	rest := c.decide(set, nil, set.ports)
	c.rows.Verdicts[VerdictKey{set.number, 0}] = rest
	c.decideFor(set, c.match(set), rest)
	c.meter.end(c)
}

// decideFor makes the rows of identities that match has returned.
func (c *compiler) decideFor(set *ruleSet, matched []*identity, rest Verdict) {
	type alike struct {
		*meeting
		ports string // that have names
	}
	type decision struct {
		Verdict
		namespaced bool // a NetworkPolicy has a rule for it
	}
	decided := map[alike]decision{}
	for _, i := range matched {
		if c.exhausted() {
			i.meets = nil
			continue
		}
		ports := set.portsFor(i)
		key := alike{meeting: i.meets}
		if i.meets.named && set.d == Egress {
			var f form
			f.named(ports)
			key.ports = string(f)
		}
		v, ok := decided[key]
		if !ok {
			v.namespaced = slices.ContainsFunc(i.meets.rules, func(n int32) bool { q := set.clauses[n]; return q.tier == Namespaced && !q.own })
			v.Verdict = c.decide(set, i.meets.rules, ports)
			decided[key] = v
		}
		i.meets = nil
		if v.Verdict != rest && c.spend(rowWork) {
			c.rows.Verdicts[VerdictKey{set.number, i.number}] = v.Verdict
			if c.meter != nil && v.namespaced {
				c.meter.row(c, i, v.Verdict)
			}
		}
	}
}

// portsFor returns the named ports of the end that is called.
func (s *ruleSet) portsFor(peer *identity) []NamedPort {
	switch {
	case s.d == Ingress:
		return s.ports
	case peer.content == nil:
		return nil
	}
	return peer.content.ports
}

// decide returns what a rule set says of identities that some of its rules match, and those for anyone.
func (c *compiler) decide(set *ruleSet, matching []int32, ports []NamedPort) Verdict {
	f := flattener{deny: set.deny, isolated: set.isolated}
	both := slices.Concat(set.always, matching)
	slices.Sort(both)
	work := 0
	for _, n := range slices.Compact(both) {
		q := set.clauses[n].resolve(ports)
		work += 1 + portWork*len(q.ports)
		f.clauses = append(f.clauses, q)
	}
	if !c.use(set, work) {
		return Verdict{}
	}
	rest, others := f.flatten()
	for _, segments := range others {
		c.use(set, portWork*len(segments))
	}
	return c.verdict(rest, others)
}
