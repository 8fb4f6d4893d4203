// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

func (c *compiler) prepare(e *entry) {
	for _, d := range []Direction{Egress, Ingress} {
		rules, ok := e.rules(d)
		if !ok {
			continue
		}
		q := &prepared{clauses: make([]*clause, len(rules))}
		origin := e.origin()
		origin.Direction, origin.Reason = d, DefaultDeny
		if e.Tier == Namespaced {
			q.deny = c.number(origin.digest(), 0)
		}
		origin.Reason = ByRule
		for origin.Index = range rules {
			r := c.clause(&rules[origin.Index], origin)
			q.clauses[origin.Index], q.named = r, q.named || r.named
		}
		e.prepared[d] = q
	}
}

func (c *compiler) clause(r *Rule, o Origin) *clause {
	q := &clause{Rule: r, number: c.number(o.digest(), 0), tier: o.Tier}
	q.named = slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name != "" })
	for _, p := range r.Peers {
		switch {
		case p.Block != nil:
			q.blocks = append(q.blocks, c.blocks.add(p.Block))
		case p.Pods != nil:
			q.terms += p.Pods.terms()
		case p.Nodes != nil:
			q.terms += p.Nodes.terms()
		}
	}
	return q
}

func (q *clause) anyone() bool { return len(q.Peers) == 0 && !q.own }

// resolve returns the rule with numbers in place of the names of ports; nil: no port has one of the names.
func (q *clause) resolve(ports []NamedPort) *clause {
	if !q.named {
		return q
	}
	out, rule := *q, Rule{Action: q.Action}
	for _, p := range q.Ports {
		if p.Name == "" {
			rule.Ports = append(rule.Ports, p)
			continue
		}
		for _, n := range ports {
			if p.isNamed(n) {
				rule.Ports = append(rule.Ports, Port{Protocol: n.Protocol, First: n.Port, Last: n.Port})
			}
		}
	}
	if out.Rule = &rule; len(rule.Ports) == 0 {
		return nil
	}
	return &out
}

// setOf returns the rule set of a pod, and makes it if it is new; 0 if no policy selects the pod.
func (c *compiler) setOf(p *pod, d Direction) uint32 {
	f, selecting, named := newForm("set"), false, false
	f.bytes(byte(d))
	for _, e := range p.by {
		if q := e.prepared[d]; q != nil {
			f.bytes(e.id[:]...)
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
		set.number = c.number(id, 0)
		c.sets[id] = set
		c.compose(set, p.by)
		c.fill(set)
	}
	return set.number
}

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
				set.clauses = append(set.clauses,
					&clause{Rule: &Rule{}, number: c.number(Origin{Reason: OwnNode}.digest(), 0), tier: Namespaced, own: true})
			}
		}
		set.clauses = append(set.clauses, q.clauses...)
	}
	slices.SortStableFunc(set.clauses, func(a, b *clause) int { return cmp.Compare(a.tier, b.tier) })
}
