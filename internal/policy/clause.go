// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// clause is a rule.
type clause struct {
	id     Digest // of its number
	rule   uint32
	action Action
	tier   Tier
	anyone bool // it matches all identities
	own    bool // it matches the pods' own node
	blocks []*block
	peers  []peer // others
	terms  int    // of the selectors of these
	ports  []Port // nil: any
	named  bool   // some ports have a name
}

// peer has one field, as a Peer.
type peer struct {
	pods  *PodSelector
	nodes *Selector
}

// number gives a rule its number. It is that of its place in a policy, whatever the rule says, so that a change of a policy
// leaves the numbers of the others.
func (c *Compiler) number(r *clause, o Origin) {
	f := newForm("rule")
	f.bytes(o.key()...)
	r.id = f.digest()
	var fresh bool
	if r.rule, fresh = c.numbers.acquire(r.id); fresh {
		c.rules.put(r.rule, o)
	}
}

func (c *Compiler) unnumber(r *clause) {
	if c.numbers.release(r.id) {
		c.rules.remove(r.rule)
	}
}

func (c *Compiler) clause(r *Rule, t Tier) *clause {
	out := &clause{action: r.Action, tier: t, anyone: len(r.Peers) == 0, ports: slices.Clone(r.Ports)}
	if len(r.Ports) == 0 {
		out.ports = nil
	}
	out.named = slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name != "" })
	for _, p := range r.Peers {
		if p.Block != nil {
			out.blocks = append(out.blocks, c.blocks.acquire(p.Block))
			continue
		}
		out.peers = append(out.peers, peer{p.Pods, p.Nodes})
		if p.Pods != nil {
			out.terms += p.Pods.Namespaces.terms() + p.Pods.Pods.terms()
		} else if p.Nodes != nil {
			out.terms += p.Nodes.terms()
		}
	}
	return out
}

// matches reports whether a rule with peers matches a pod or node by what it is; nil is neither.
func (q *clause) matches(i *content) bool {
	switch {
	case i == nil:
		return false
	case q.own:
		return i.ownNode
	}
	return slices.ContainsFunc(q.peers, func(p peer) bool {
		if p.pods != nil {
			return i.kind == aPod && p.pods.selects(i.namespace, i.labels, q.tier, i.lacks)
		}
		return i.kind == aNode && p.nodes.Matches(i.labels)
	})
}

// members calls a function for each identity of a pod or node that a rule with peers matches by what that is. Some come twice.
func (c *Compiler) members(set *ruleSet, q *clause, each func(*identity)) {
	all := func(of *content) {
		for i := range of.identities {
			each(i)
		}
	}
	nodes := func(is func(*content) bool) {
		for of := range c.labelled[label{of: aNode}] {
			if is(of) {
				all(of)
			}
		}
	}
	if q.own {
		nodes(func(of *content) bool { return of.ownNode })
	}
	for _, p := range q.peers {
		switch {
		case p.pods != nil:
			selected, asked := c.selected(p.pods, q.tier)
			if q.tier == Namespaced { // each rule set has the others
				c.use(set, asked*(1+p.pods.Namespaces.terms()+p.pods.Pods.terms())/podWork)
			}
			for _, of := range selected {
				all(of)
			}
		default:
			nodes(func(of *content) bool { return p.nodes.Matches(of.labels) })
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
