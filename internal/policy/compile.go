// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"slices"
)

// compiler holds what Compile works on.
type compiler struct {
	snapshot   *Snapshot
	numbers    *numbers
	namespaces map[string]map[string]string
	blocks     *blocks
	identities []identity
	byNumber   map[uint32]int32   // index of identities
	pods       []int32            // identities of pods
	labelled   map[label][]int32  // identities of pods, by each label
	inBlock    map[string][]int32 // identities, by block
	rows       Rows
}

// label is a label of pods, or of their namespaces.
type label struct {
	ofNamespace bool
	key, value  string
}

// clause is a rule with the identities that it matches.
type clause struct {
	rule    uint32
	action  Action
	tier    Tier
	anyone  bool // it matches all identities, and members is empty
	members []int32
	ports   []Port // nil: any
	named   bool   // some ports have a name
}

// prepared is a policy in one direction.
type prepared struct {
	tier    Tier
	subject []int32 // identities
	id      Digest  // of the policy and the direction
	clauses []*clause
	deny    uint32 // rule of the default deny
	judges  bool   // the pods' own node
}

// Compile returns the rows for a snapshot. What is in have keeps its number. The error names a policy and its field, or an
// address that two have.
func Compile(s Snapshot, have Rows) (Rows, error) {
	if err := s.validate(); err != nil {
		return Rows{}, err
	}
	s.Policies, s.Previous = s.local(s.Policies), s.local(s.Previous)
	c := &compiler{
		snapshot: &s, numbers: newNumbers(have.Numbers), namespaces: s.namespaceLabels(),
		blocks: newBlocks(s.Policies, s.Previous), rows: newRows(), byNumber: map[uint32]int32{},
		labelled: map[label][]int32{}, inBlock: map[string][]int32{},
	}
	c.identify()
	for n, policies := range [][]Policy{s.Previous, s.Policies} {
		if n == 0 && len(policies) == 0 {
			continue
		}
		for _, d := range []Direction{Egress, Ingress} {
			c.endpoints(c.prepare(ordered(policies), d), d, n == 1)
		}
	}
	c.rows.Numbers = c.numbers.want
	return c.rows, nil
}

// prepare finds the members of all rules of a direction.
func (c *compiler) prepare(policies []Policy, d Direction) []*prepared {
	var out []*prepared
	for i := range policies {
		p := &policies[i]
		rules, ok := p.rules(d)
		if !ok {
			continue
		}
		q := &prepared{tier: p.Tier, judges: p.JudgesNode, subject: c.selected(p.Subject), id: digest("policy", append(canonical(p), byte(d)))}
		origin := p.origin()
		origin.Direction, origin.Reason = d, DefaultDeny
		if p.Tier == Namespaced {
			q.deny = c.rule(origin)
		}
		origin.Reason = ByRule
		for n := range rules {
			origin.Index = n
			q.clauses = append(q.clauses, c.clause(&rules[n], p.Tier, c.rule(origin)))
		}
		out = append(out, q)
	}
	return out
}

// rule returns the number of an origin. It is that of its place in a policy, whatever the rule says, so that a change of a policy
// leaves the numbers of the others.
func (c *compiler) rule(o Origin) uint32 {
	number, _ := c.numbers.of("rule", o.key())
	c.rows.Rules[number] = o
	return number
}

func (c *compiler) clause(r *Rule, t Tier, number uint32) *clause {
	out := &clause{rule: number, action: r.Action, tier: t, anyone: len(r.Peers) == 0}
	if len(r.Ports) > 0 {
		out.ports = r.Ports
	}
	out.named = slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name != "" })
	if out.anyone {
		return out
	}
	for _, p := range r.Peers {
		switch {
		case p.Pods != nil:
			out.members = append(out.members, c.selected(*p.Pods)...)
		case p.Nodes != nil:
			out.members = append(out.members, c.having(func(i *identity) bool { return i.Kind == "node" && p.Nodes.Matches(i.Labels) })...)
		default:
			out.members = append(out.members, c.inBlock[p.Block.key()]...)
		}
	}
	slices.Sort(out.members)
	out.members = slices.Compact(out.members)
	return out
}

// selected returns the identities of the pods that a selector selects.
func (c *compiler) selected(s PodSelector) (out []int32) {
	for _, i := range c.candidates(s) {
		if s.matches(c.identities[i].Namespace, c.identities[i].Labels) {
			out = append(out, i)
		}
	}
	return out
}

// candidates returns identities of pods, among them all that a selector selects: those with the rarest label that it asks for.
func (c *compiler) candidates(s PodSelector) []int32 {
	rarest := c.pods
	for ofNamespace, labels := range map[bool]map[string]string{true: s.Namespaces.Labels, false: s.Pods.Labels} {
		for key, value := range labels {
			if have := c.labelled[label{ofNamespace, key, value}]; len(have) < len(rarest) {
				rarest = have
			}
		}
	}
	return rarest
}

// having returns the identities for which a function is true.
func (c *compiler) having(is func(*identity) bool) (out []int32) {
	for i := range c.identities {
		if is(&c.identities[i]) {
			out = append(out, int32(i))
		}
	}
	return out
}

// endpoints makes the rule sets of this node's pods in one direction, and gives them to the endpoints if these are to be
// enforced. Pods that the same policies select share one.
func (c *compiler) endpoints(all []*prepared, d Direction, enforce bool) {
	selecting := make([][]*prepared, len(c.identities))
	for _, q := range all {
		for _, i := range q.subject {
			selecting[i] = append(selecting[i], q)
		}
	}
	for i := range c.snapshot.Pods {
		p := &c.snapshot.Pods[i]
		if !p.enforced(c.snapshot.Node) {
			continue
		}
		set := c.setOf(p, selecting[c.byNumber[c.rows.Addresses[mappedPrefix(hostPrefix(p.Addresses[0].Unmap()))]]], d)
		if !enforce {
			continue
		}
		for _, a := range p.Addresses {
			sets := c.rows.Endpoints[mapped(a)]
			if d == Egress {
				sets.Egress = set
			} else {
				sets.Ingress = set
			}
			c.rows.Endpoints[mapped(a)] = sets
		}
	}
}

// setOf returns the number of the rule set of a pod, 0 if no policy selects it, and makes the set if it is new.
func (c *compiler) setOf(p *Pod, selecting []*prepared, d Direction) uint32 {
	if len(selecting) == 0 {
		return 0
	}
	var key []byte
	named := false
	for _, q := range selecting {
		key = append(key, q.id[:]...)
		named = named || slices.ContainsFunc(q.clauses, func(c *clause) bool { return c.named })
	}
	var ports []NamedPort
	if named && d == Ingress { // they are the pod's own; on egress they are the peer's
		ports = p.Ports
		key = append(key, canonical(ports)...)
	}
	set, fresh := c.numbers.of("set", key)
	if fresh {
		c.set(set, selecting, d, ports)
	}
	return set
}

// set fills the rows of a rule set. The rules that hold for anyone make the row of identity 0; the identities that other
// rules match get rows of their own. Identities that the same rules match are decided about once.
func (c *compiler) set(set uint32, selecting []*prepared, d Direction, own []NamedPort) {
	var clauses []*clause
	if !slices.ContainsFunc(selecting, func(q *prepared) bool { return q.judges }) {
		clauses = append(clauses, c.ownNode())
	}
	deny, isolated := uint32(0), false
	for _, q := range selecting {
		if q.tier == Namespaced && !isolated {
			deny, isolated = q.deny, true
		}
		clauses = append(clauses, q.clauses...)
	}
	slices.SortStableFunc(clauses, func(a, b *clause) int { return int(a.tier) - int(b.tier) })
	f := flattener{deny: deny, isolated: isolated}
	matching := make([][]int32, len(c.identities))
	var always []int32
	for n, q := range clauses {
		if q.anyone {
			always = append(always, int32(n))
		}
		switch {
		case !q.anyone:
			for _, i := range q.members {
				matching[i] = append(matching[i], int32(n))
			}
		case q.named && d == Egress:
			for i := range c.identities {
				if len(c.identities[i].Ports) > 0 {
					matching[i] = append(matching[i], int32(n))
				}
			}
		}
	}
	decide := func(matching []int32, ports []NamedPort) Verdict {
		f.clauses = f.clauses[:0]
		both := slices.Concat(always, matching)
		slices.Sort(both)
		for _, n := range slices.Compact(both) {
			f.clauses = append(f.clauses, clauses[n].resolve(ports))
		}
		return c.verdict(f.flatten())
	}
	rest := decide(nil, own)
	c.rows.Verdicts[VerdictKey{set, 0}] = rest
	decided := map[string]Verdict{}
	for i, m := range matching {
		if len(m) == 0 {
			continue
		}
		ports := own
		if d == Egress {
			ports = c.identities[i].Ports
		}
		key := signature(m, clauses, ports, d)
		v, ok := decided[key]
		if !ok {
			v = decide(m, ports)
			decided[key] = v
		}
		if v != rest {
			c.rows.Verdicts[VerdictKey{set, c.identities[i].number}] = v
		}
	}
}

// signature is equal for identities that a rule set decides about alike.
func signature(matching []int32, clauses []*clause, ports []NamedPort, d Direction) string {
	key := make([]byte, 0, 4*len(matching))
	named := false
	for _, n := range matching {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
		named = named || clauses[n].named
	}
	if named && d == Egress {
		key = append(key, canonical(ports)...)
	}
	return string(key)
}

// ownNode returns the rule that lets a pod and its node talk.
func (c *compiler) ownNode() *clause {
	out := &clause{rule: c.rule(Origin{Reason: OwnNode}), tier: Namespaced}
	out.members = c.having(func(i *identity) bool { return i.OwnNode })
	return out
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
