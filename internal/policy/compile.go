// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
)

// Limits bound the cost of a compilation, on top of the policies in force.
type Limits struct {
	Work  int    // limits work like [MostWork], and overlaps in proportion to [MostOverlaps]; 0: unlimited
	Joins bool   // set if pods join the pods of Previous: the latter then cost nothing
	Quota *Quota // the quota of each namespace; nil: unlimited

	digests digests // of policies; nil: none is known
}

// Steps returns the sets of rows to write one after the other, starting from have. The last one is for the snapshot
// without Previous; without policies it is empty. Objects in have keep their numbers.
func Steps(s Snapshot, have Rows, l Limits) ([]Rows, error) {
	alone := s
	if alone.Previous = nil; len(s.Policies) == 0 {
		alone = Snapshot{}
	}
	l.digests = digests{}
	if s.Previous == nil || s.keeps(s.Previous, l.digests) {
		if !l.Joins {
			s = alone
		}
		rows, err := compile(s, have, l)
		return []Rows{rows}, err
	}
	with := func(more Rows) Rows {
		numbers := maps.Clone(more.Numbers)
		maps.Copy(numbers, have.Numbers)
		return Rows{Numbers: numbers}
	}
	if l.Joins {
		both, err := compile(s, have, l)
		if err != nil {
			return nil, err
		}
		last, err := compile(alone, with(both), Limits{digests: l.digests})
		return []Rows{both, last}, err
	}
	last, err := compile(alone, have, l)
	if err != nil {
		return []Rows{last}, err
	}
	both, err := compile(s, with(last), Limits{Work: 4 * l.Work, digests: l.digests}) // each alone is within the limit
	return []Rows{both, last}, err
}

// keeps reports whether a snapshot has all policies of one before and no others, and pods of this node as they were.
func (s *Snapshot) keeps(before *Snapshot, known digests) bool {
	for i := range s.Policies {
		if i >= len(before.Policies) || known.of(&s.Policies[i]) != known.of(&before.Policies[i]) {
			return false
		}
	}
	if len(s.Policies) != len(before.Policies) {
		return false
	}
	pods, now, had := map[netip.Addr]*Pod{}, s.NamespaceLabels(), before.NamespaceLabels()
	for i := range s.Pods {
		if p := &s.Pods[i]; p.enforced(s.Node) {
			pods[p.Addresses[0]] = p
		}
	}
	return !slices.ContainsFunc(before.Pods, func(p Pod) bool {
		if !p.enforced(s.Node) {
			return false
		}
		at := pods[p.Addresses[0]]
		return at == nil || !maps.Equal(at.Labels, p.Labels) || !slices.Equal(at.Ports, p.Ports) ||
			!maps.Equal(now[at.Namespace], had[p.Namespace])
	})
}

// compile returns the rows for a snapshot. Objects in have keep their numbers. The error names a policy and its field,
// or an address that two have, or is a *LimitError or a *QuotaError.
func compile(s Snapshot, have Rows, l Limits) (Rows, error) {
	if err := s.validate(); err != nil {
		return Rows{}, err
	}
	if l.digests == nil {
		l.digests = digests{}
	}
	c := &compiler{
		rows: Rows{
			map[netip.Prefix]uint32{}, map[netip.Addr]Sets{}, map[VerdictKey]Verdict{}, map[PortKey]PortVerdict{},
			map[Digest]uint32{},
		},
		have: have.Numbers, taken: make(map[uint32]bool, len(have.Numbers)), tableSizes: map[uint32]int{}, node: s.Node,
		namespaces: s.NamespaceLabels(), digests: l.digests,
		asked: asked{values: map[label]map[string]bool{}, keys: map[label]bool{}, ports: map[string]bool{}},
		blocks: blocks{
			byKey: map[string]*block{}, edges: map[netip.Prefix]*edge{}, covers: map[Digest]*cover{},
			found: map[netip.Prefix]*cover{},
		},
		hosts: map[netip.Prefix]*content{}, contents: map[Digest]*content{},
		labelled: labelled[*content]{}, identities: map[address]*identity{}, entries: map[Digest]*entry{},
		sets: map[Digest]*ruleSet{},
	}
	for _, number := range have.Numbers {
		c.taken[number] = true
	}
	if l.Quota != nil {
		c.meter = &meter{
			limit: *l.Quota, made: map[string]*Quota{}, owners: map[*block]map[string]int{}, seed: maphash.MakeSeed(),
			covers: map[*cover]map[string]uint64{}, classes: map[*identity]map[string]uint64{}, tables: map[class]bool{},
			foreign: map[class]int{},
		}
	}
	err := c.run(&s, l)
	if over := c.meter.over(); len(over) > 0 {
		err = &QuotaError{over}
	}
	return c.rows, err
}

func (c *compiler) run(s *Snapshot, l Limits) error {
	var before []*pod
	overlaps := 0
	if s.Previous != nil {
		before = c.selectPods(s.Previous)
		overlaps = c.blocks.overlaps()
		for _, e := range c.entries {
			e.before = true
		}
	}
	c.work, c.limit = 0, l.Work
	now := c.selectPods(s)
	if c.meter.name(c); len(c.meter.over()) > 0 {
		return nil // the caller has it
	}
	if n := c.blocks.overlaps() - overlaps; l.Work > 0 && n > MostOverlaps*max(1, l.Work/MostWork) {
		return &LimitError{Largest: c.largest(), What: "overlaps of ranges", Number: n, Limit: MostOverlaps}
	}
	c.placePeers(s)
	c.identify()
	work := c.work
	c.limit = 0
	for _, p := range before { // as long as programs read them, they decide about all identities
		c.setOf(p, Egress)
		c.setOf(p, Ingress)
	}
	c.work, c.limit = work, l.Work
	for _, p := range now {
		sets := Sets{c.setOf(p, Egress), c.setOf(p, Ingress)}
		for _, a := range p.Addresses {
			c.rows.Endpoints[mapped(a)] = sets
		}
	}
	if c.exhausted() {
		return &LimitError{Largest: c.largest(), What: workUnits, Number: c.work, Limit: min(l.Work, MostWork)}
	}
	return nil
}

func (c *compiler) selectPods(s *Snapshot) []*pod {
	pods, local := s.podsBy(func(p *Pod) bool { return p.enforced(c.node) })
	for i := range s.Policies {
		var of *entry
		for at := range s.Policies[i].Subject.selected(local) {
			if of == nil {
				of = c.entry(&s.Policies[i])
			}
			at.by = append(at.by, of)
		}
	}
	for _, at := range pods {
		slices.SortFunc(at.by, (*entry).compare)
		at.by = slices.Compact(at.by)
	}
	return pods
}

func (c *compiler) entry(p *Policy) *entry {
	id := c.digests.of(p)
	e := c.entries[id]
	if e == nil {
		e = &entry{Policy: p, id: id}
		c.entries[id] = e
		if c.prepare(e); !c.exhausted() {
			c.spend(askedWork * c.asked.add(p))
		}
	}
	return e
}

// largest returns the policy with the most peers and ports, if possible one that is not in force yet.
func (c *compiler) largest() (most Origin) {
	size, before := -1, true
	for _, e := range c.entries {
		rules, peers, ranges, ports := e.size()
		o, n := e.origin(), rules+peers+ranges+ports
		if e.before == before && (n > size || n == size && o.String() < most.String()) || before && !e.before {
			size, before, most = n, e.before, o
		}
	}
	return most
}
