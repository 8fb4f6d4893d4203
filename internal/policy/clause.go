// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// clause is a rule.
type clause struct {
	rule   uint32 // its number
	action Action
	tier   Tier
	anyone bool // it matches all identities
	own    bool // it matches the pods' own node
	blocks []*block
	peers  []Peer // others
	terms  int    // of the selectors of these
	ports  []Port // nil: any
	named  bool   // some ports have a name
}

// number returns the number of a rule.
func (c *compiler) number(o Origin) uint32 {
	number, fresh := c.numbers.of(ruleDigest(o), 0)
	if fresh {
		c.rows.Rules[number] = o
	}
	return number
}

func (c *compiler) clause(r *Rule, o Origin) *clause {
	out := &clause{rule: c.number(o), action: r.Action, tier: o.Tier, anyone: len(r.Peers) == 0}
	if len(r.Ports) > 0 {
		out.ports = r.Ports
	}
	out.named = slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name != "" })
	for _, p := range r.Peers {
		switch {
		case p.Block != nil:
			out.blocks = append(out.blocks, c.blocks.add(p.Block))
			continue
		case p.Pods != nil:
			out.terms += p.Pods.Namespaces.terms() + p.Pods.Pods.terms()
		case p.Nodes != nil:
			out.terms += p.Nodes.terms()
		}
		out.peers = append(out.peers, p)
	}
	return out
}

// members calls a function for each pod or node that a rule matches by what that is, but for rules for anyone: of
// these, for those that may have ports with the names of the rule. Some come twice.
func (c *compiler) members(set *ruleSet, q *clause, each func(*content)) {
	if q.anyone && q.named && set.d == Egress {
		for _, of := range c.contents {
			if len(of.ports) > 0 {
				each(of)
			}
		}
	}
	nodes := func(is func(*content) bool) {
		for _, of := range c.labelled[label{of: aNode}] {
			if is(of) {
				each(of)
			}
		}
	}
	if q.own {
		nodes(func(of *content) bool { return of.ownNode })
	}
	for _, p := range q.peers {
		if p.Nodes != nil {
			nodes(func(of *content) bool { return p.Nodes.Matches(of.labels) })
			continue
		}
		rarest := c.labelled.rarest(*p.Pods)
		if q.tier == Namespaced { // each rule set has the others
			c.use(set, len(rarest)*(1+p.Pods.Namespaces.terms()+p.Pods.Pods.terms())/podWork)
		}
		for _, of := range rarest {
			if p.Pods.selects(of.namespace, of.labels, q.tier, of.lacks) {
				each(of)
			}
		}
	}
}

// resolve returns the rule with numbers in place of the names of ports.
func (q *clause) resolve(ports []NamedPort) *clause {
	if !q.named {
		return q
	}
	out := *q
	out.ports = []Port{}
	for _, p := range q.ports {
		if p.Name == "" {
			out.ports = append(out.ports, p)
			continue
		}
		for _, n := range ports {
			if n.Name == p.Name && (p.Protocol == 0 || p.Protocol == n.Protocol) {
				out.ports = append(out.ports, Port{Protocol: n.Protocol, First: n.Port, Last: n.Port})
			}
		}
	}
	return &out
}
