// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

// prepared is a policy in one direction.
type prepared struct {
	of      *entry
	id      Digest // of the policy and the direction
	clauses []*clause
	deny    *clause // the default deny
	named   bool
}

// ruleSet is what the policies that select a pod say in a direction. Pods that the same policies select share one.
type ruleSet struct {
	id        Digest
	number    uint32
	namespace string // of the NetworkPolicies; "" if there are none
	pods      int
	d         Direction
	clauses   []*clause
	always    []int32 // clauses that match anyone
	deny      uint32
	isolated  bool
	own       *clause     // that lets a pod and its node talk; nil: the node is judged
	ports     []NamedPort // the pods' own, on ingress
	work      int         // of all changes
}

func (s *ruleSet) ref() uint32 {
	if s == nil {
		return 0
	}
	return s.number
}

func (e *entry) active() bool { return e.prepared != [2]*prepared{} }

// prepare makes the clauses of a policy, and acquires their blocks and the numbers of their rules.
func (c *Compiler) prepare(e *entry) {
	for _, d := range []Direction{Egress, Ingress} {
		rules, ok := e.rules(d)
		if !ok {
			continue
		}
		f := newForm("direction")
		f.bytes(e.id[:]...)
		f.bytes(byte(d))
		q := &prepared{of: e, id: f.digest(), clauses: make([]*clause, 0, len(rules))}
		origin := e.origin()
		origin.Direction, origin.Reason = d, DefaultDeny
		if e.Tier == Namespaced {
			q.deny = &clause{}
			c.number(q.deny, origin)
		}
		origin.Reason = ByRule
		for n := range rules {
			origin.Index = n
			r := c.clause(&rules[n], e.Tier)
			c.number(r, origin)
			q.clauses = append(q.clauses, r)
			q.named = q.named || r.named
		}
		e.prepared[d] = q
	}
}

// dismiss undoes prepare.
func (c *Compiler) dismiss(e *entry) {
	for d, q := range e.prepared {
		if q == nil {
			continue
		}
		if q.deny != nil {
			c.unnumber(q.deny)
		}
		for _, r := range q.clauses {
			c.unnumber(r)
			for _, b := range r.blocks {
				c.blocks.release(b)
			}
		}
		e.prepared[d] = nil
	}
}

// setOf returns the rule set of a pod by a list of policies, and makes it if it is new; nil if none selects the pod.
func (c *Compiler) setOf(p *pod, list int, d Direction) *ruleSet {
	want, selecting := c.describeSet(p, list, d)
	if want == nil {
		return nil
	}
	set := c.sets[want.id]
	if set == nil {
		set = want
		set.number, _ = c.numbers.acquire(set.id)
		c.sets[set.id] = set
		c.compose(set, selecting)
		c.fill(set)
	}
	set.pods++
	return set
}

// describeSet returns what tells the rule set of a pod from others, and the policies that select the pod in their order.
func (c *Compiler) describeSet(p *pod, list int, d Direction) (*ruleSet, []*prepared) {
	var selecting []*prepared
	named := false
	for e := range p.entries {
		if q := e.prepared[d]; q != nil && e.in[list] {
			selecting = append(selecting, q)
			named = named || q.named
		}
	}
	if len(selecting) == 0 {
		return nil, nil
	}
	slices.SortFunc(selecting, func(a, b *prepared) int { return inOrder(&a.of.Policy, &b.of.Policy) })
	f := newForm("set")
	for _, q := range selecting {
		f.bytes(q.id[:]...)
	}
	var ports []NamedPort
	if named && d == Ingress { // they are the pod's own; on egress they are the peer's
		ports = p.ports
		f.named(ports)
	}
	return &ruleSet{id: f.digest(), d: d, ports: ports}, selecting
}

// leaveSet forgets a rule set that no pod has any more. Its rows go.
func (c *Compiler) leaveSet(set *ruleSet) {
	if set == nil {
		return
	}
	if set.pods--; set.pods > 0 {
		return
	}
	delete(c.sets, set.id)
	c.setVerdict(VerdictKey{set.number, 0}, nil)
	for _, i := range c.identities {
		c.setVerdict(VerdictKey{set.number, i.number}, nil)
	}
	if set.own != nil {
		c.unnumber(set.own)
	}
	c.total -= set.work
	c.numbers.release(set.id)
}

// compose puts the rules of policies together.
func (c *Compiler) compose(set *ruleSet, selecting []*prepared) {
	if !slices.ContainsFunc(selecting, func(q *prepared) bool { return q.of.JudgesNode }) {
		set.own = &clause{tier: Namespaced, own: true}
		c.number(set.own, Origin{Reason: OwnNode})
		set.clauses = append(set.clauses, set.own)
	}
	for _, q := range selecting {
		if q.deny != nil && !set.isolated {
			set.deny, set.isolated, set.namespace = q.deny.rule, true, q.of.Namespace
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
func (c *Compiler) fill(set *ruleSet) {
	c.meter.begin(set)
	defer c.meter.end(c)
	rest := c.decide(set, nil, set.ports)
	c.setVerdict(VerdictKey{set.number, 0}, &rest)
	c.decideFor(set, c.match(set, nil), rest)
}

// decideFresh makes the rows of identities that came, in all rule sets.
func (c *Compiler) decideFresh(fresh []*identity) {
	if len(fresh) == 0 {
		return
	}
	for _, set := range c.sets {
		c.decideFor(set, c.match(set, fresh), c.verdicts.rows[VerdictKey{set.number, 0}])
	}
}

// decideFor makes the rows of identities that match has returned.
func (c *Compiler) decideFor(set *ruleSet, matched []*identity, rest Verdict) {
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
		if v.Verdict != rest && c.spend(set, rowWork) {
			c.setVerdict(VerdictKey{set.number, i.number}, &v.Verdict)
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
func (c *Compiler) decide(set *ruleSet, matching []int32, ports []NamedPort) Verdict {
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
