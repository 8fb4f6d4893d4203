// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Compiler compiles one snapshot after the other. It remembers what it has made, and compiles what differs: a change costs the search
// for the difference, and then what the difference touches. After an error it is of no use any more.
type Compiler struct {
	numbers    numbers
	rules      table[uint32, Origin]
	ports      table[PortKey, PortVerdict]
	verdicts   table[VerdictKey, Verdict]
	rowsOf     map[uint32]int // how many verdicts an identity has
	addresses  table[netip.Prefix, uint32]
	endpoints  table[netip.Addr, Sets]
	portTables map[uint32]*portTable
	unused     map[uint32]bool // tables of ports that may be

	blocks     blocks
	hosts      map[netip.Prefix]*content  // of whole addresses
	prefixes   map[netip.Prefix]*identity // all prefixes that have a row; nil: of identity 0
	identities map[Digest]*identity
	contents   map[Digest]*content
	labelled   labelled[*content]
	peers      peers
	told       told
	lapsed     lapsed
	pods       map[netip.Addr]*pod // of this node, by their first address
	local      labelled[*pod]
	entries    map[Digest]*entry
	sets       map[Digest]*ruleSet
	work       int // of this change, and how much it may be
	limit      int
	total      int      // of all rule sets
	renamed    *ruleSet // in place; its number has no digest until the next change
	meter      *meter   // nil: rows of namespaces are not counted
}

// pod is a pod of this node.
type pod struct {
	addresses []netip.Addr
	namespace map[string]string // its labels
	labels    map[string]string
	by        []label // of both
	ports     []NamedPort
	entries   map[*entry]struct{} // that select it
	sets      [2][2]*ruleSet      // of what is enforced, and what was, by direction
}

// Lists of a snapshot's policies.
const (
	enforced = iota
	previous
)

// entry is a policy.
type entry struct {
	Policy
	id       Digest
	in, were [2]bool // lists of a snapshot, and of the one before
	pods     map[*pod]struct{}
	prepared [2]*prepared // by direction; nil: it has no say, or selects no pod of this node
}

// NewCompiler returns a compiler that knows no snapshot. What is in have keeps its number.
func NewCompiler(have Rows) *Compiler {
	return &Compiler{
		numbers: newNumbers(have), rules: newTable[uint32, Origin](), ports: newTable[PortKey, PortVerdict](),
		verdicts: newTable[VerdictKey, Verdict](), rowsOf: map[uint32]int{}, addresses: newTable[netip.Prefix, uint32](), endpoints: newTable[netip.Addr, Sets](),
		portTables: map[uint32]*portTable{}, unused: map[uint32]bool{}, blocks: newBlocks(), hosts: map[netip.Prefix]*content{},
		prefixes: map[netip.Prefix]*identity{}, identities: map[Digest]*identity{}, contents: map[Digest]*content{},
		labelled: labelled[*content]{}, told: newTold(), pods: map[netip.Addr]*pod{}, local: labelled[*pod]{}, entries: map[Digest]*entry{}, sets: map[Digest]*ruleSet{},
	}
}

// Compile returns the rows for a snapshot, as [Compiler.Change] makes them. What is in have keeps its number.
func Compile(s Snapshot, have Rows) (Rows, error) {
	c := NewCompiler(have)
	_, err := c.Change(s)
	return c.Rows(), err
}

// Rows returns all rows. The next change edits them.
func (c *Compiler) Rows() Rows {
	return Rows{c.addresses.rows, c.endpoints.rows, c.verdicts.rows, c.ports.rows, c.rules.rows, c.numbers.rows}
}

// Change compiles a snapshot, and returns what differs from the rows of before; nothing for the first one, of which Rows has all. The
// snapshot must not be edited before the next change. The error names a policy and its field, or an address that
// two have, or is a *LimitError.
func (c *Compiler) Change(s Snapshot) (Changes, error) { return c.change(s, bounded) }

// Resume compiles a snapshot that is in force already, as the first one, however much its blocks overlap and however much work it is.
func (c *Compiler) Resume(s Snapshot) error {
	_, err := c.change(s, resuming)
	return err
}

// Join compiles a snapshot to which pods have come after one that is in force, however much work that is. The rows that there are may be
// another's: nothing changes in place. A *LimitError names a policy of pods that have come.
func (c *Compiler) Join(s Snapshot) error {
	_, err := c.change(s, joining)
	return err
}

// mode is how a snapshot is compiled.
type mode uint8

const (
	bounded mode = iota
	joining
	resuming
)

func (c *Compiler) change(s Snapshot, how mode) (Changes, error) {
	if err := s.validatePods(); err != nil {
		return Changes{}, err
	}
	c.renumber()
	touched, before := map[netip.Prefix]bool{}, c.lapsed
	c.lapsed = lapsed{}
	pods := c.placePods(&s)
	if err := c.enter(&s); err != nil {
		return Changes{}, err
	}
	c.selectPods(pods)
	limit := 0
	if how != resuming {
		if limit = mostWork + c.told.work(); how == bounded {
			limit += c.total // it may meet what comes
		}
	}
	c.begin(limit)
	c.lapsed.entries = c.activate(pods)
	c.drop(before)
	if c.meter != nil {
		if err := c.meter.rules(c); err != nil {
			return Changes{}, err
		}
	}
	c.placePeers(touched)
	if how != resuming {
		if err := c.checkOverlaps(); err != nil {
			return Changes{}, err
		}
	}
	c.identify(touched)
	if c.meter != nil {
		c.meter.classify(c)
	}
	var inPlace Digest
	if len(s.Previous) > 0 && how == bounded && len(c.addresses.had) == 0 { // otherwise an address would meet the new row with the identity of before
		inPlace = c.changeInPlace(pods)
	}
	c.enforce(pods, inPlace != Digest{})
	c.cleanPorts()
	if c.exhausted() {
		if how != joining {
			pods = nil
		}
		return Changes{}, &LimitError{Largest: largest(c.active(pods)), What: workUnits, Number: c.work + c.told.work(), Limit: mostWork}
	}
	changes := c.changes()
	changes.InPlace = inPlace
	return changes, nil
}

// Settle drops what is kept for the policies of before, and returns what differs.
func (c *Compiler) Settle() Changes {
	for _, e := range c.entries {
		e.in[previous] = e.in[enforced]
	}
	c.begin(0)
	c.renumber()
	pods, touched := map[*pod]bool{}, map[netip.Prefix]bool{}
	c.lapsed.entries = append(c.lapsed.entries, c.activate(pods)...)
	c.enforce(pods, false)
	gone := c.lapsed
	c.drop(gone)
	if c.lapsed = (lapsed{}); len(gone.entries) > 0 {
		c.placePeers(touched)
	}
	c.identify(touched)
	c.cleanPorts()
	return c.changes()
}

func (c *Compiler) changes() Changes {
	return Changes{
		c.numbers.changes(), c.rules.changes(), c.ports.changes(), c.verdicts.changes(), c.addresses.changes(), c.endpoints.changes(), Digest{},
	}
}

// enter notes the policies of a snapshot.
func (c *Compiler) enter(s *Snapshot) error {
	for _, e := range c.entries {
		e.in = [2]bool{}
	}
	for list, policies := range [][]Policy{enforced: s.Policies, previous: s.Previous} {
		for i := range policies {
			p := &policies[i]
			id := p.Digest()
			e := c.entries[id]
			if e == nil {
				if err := p.Validate(); err != nil {
					return fmt.Errorf("%s: %w", p.origin(), err)
				}
				e = &entry{id: id}
				c.entries[id] = e
			}
			e.Policy, e.in[list] = *p, true
		}
	}
	if len(s.Previous) == 0 {
		for _, e := range c.entries {
			e.in[previous] = e.in[enforced]
		}
	}
	return nil
}

// selectPods finds the pods that new policies select, and which of the others select pods that changed.
func (c *Compiler) selectPods(changed map[*pod]bool) {
	for p := range changed {
		for e := range p.entries {
			delete(e.pods, p)
		}
		clear(p.entries)
	}
	for _, e := range c.entries {
		if e.pods == nil {
			e.pods = map[*pod]struct{}{}
			for p := range c.local.rarest(e.Subject) {
				if e.Subject.matches(p.namespace, p.labels) {
					e.pods[p], p.entries[e] = struct{}{}, struct{}{}
				}
			}
			continue
		}
		for p := range changed {
			if e.Subject.matches(p.namespace, p.labels) {
				e.pods[p], p.entries[e] = struct{}{}, struct{}{}
			}
		}
	}
}

// activate prepares the policies that have come to hold for pods of this node, and returns those that no longer do. Verdicts depend on no
// policy that selects no pod of this node. It notes the pods that are concerned.
func (c *Compiler) activate(changed map[*pod]bool) (gone []*entry) {
	for id, e := range c.entries {
		if e.in[enforced] != e.were[enforced] || e.differs() != (e.were[enforced] != e.were[previous]) {
			for p := range e.pods {
				changed[p] = true
			}
		}
		e.were = e.in
		if e.holds() && !e.active() {
			if c.prepare(e); !c.exhausted() {
				c.told.count(&e.Policy, 1)
			}
		} else if e.active() && !e.holds() {
			gone = append(gone, e)
		}
		if e.in == [2]bool{} {
			delete(c.entries, id)
			for p := range e.pods {
				delete(p.entries, e)
			}
		}
	}
	return gone
}

// lapsed is what pods had before the last change: rule sets, and policies that hold for none of them any more. Until pods are switched over, these
// sets decide about identities of that change too, and rules of these policies tell peers apart.
type lapsed struct {
	sets    []*ruleSet
	entries []*entry
}

// drop drops what has lapsed, but for policies that hold again.
func (c *Compiler) drop(l lapsed) {
	for _, set := range l.sets {
		c.leaveSet(set)
	}
	for _, e := range l.entries {
		if e.active() && !e.holds() {
			c.told.count(&e.Policy, -1)
			c.dismiss(e)
		}
	}
}

// renumber gives a rule set that has changed in place its digest.
func (c *Compiler) renumber() {
	if c.renamed != nil {
		c.numbers.put(c.renamed.id, c.renamed.number)
		c.renamed = nil
	}
}

// cleanPorts deletes tables of ports that no verdict names.
func (c *Compiler) cleanPorts() {
	for number := range c.unused {
		if t := c.portTables[number]; t.verdicts == 0 {
			delete(c.portTables, number)
			c.numbers.release(t.id)
			for _, k := range t.keys {
				c.ports.remove(k)
			}
		}
	}
	clear(c.unused)
}

// holds reports whether it selects pods of this node.
func (e *entry) holds() bool { return e.in != [2]bool{} && len(e.pods) > 0 }

// differs reports whether it comes or goes.
func (e *entry) differs() bool { return e.in[enforced] != e.in[previous] }

// enforce gives pods the rule sets of the policies that select them.
func (c *Compiler) enforce(changed map[*pod]bool, inPlace bool) {
	for _, p := range slices.SortedFunc(maps.Keys(changed), func(a, b *pod) int { return a.addresses[0].Compare(b.addresses[0]) }) {
		if c.pods[p.addresses[0].Unmap()] != p {
			continue
		}
		was, differs := p.sets, false
		for e := range p.entries {
			differs = differs || e.differs()
		}
		for list := range p.sets {
			for d := range p.sets[list] {
				p.sets[list][d] = nil
				if list == enforced || differs && !inPlace {
					p.sets[list][d] = c.setOf(p, list, Direction(d))
				}
			}
		}
		for _, list := range was {
			c.lapsed.sets = append(c.lapsed.sets, list[:]...)
		}
		now := Sets{p.sets[enforced][Egress].ref(), p.sets[enforced][Ingress].ref()}
		for _, a := range p.addresses {
			c.endpoints.put(mapped(a), now)
		}
	}
}

// forgetRows deletes the verdicts about an identity.
func (c *Compiler) forgetRows(i *identity) {
	for _, set := range c.sets {
		if c.rowsOf[i.number] == 0 {
			return
		}
		c.setVerdict(VerdictKey{set.number, i.number}, nil)
	}
}

// forget deletes what there is of identities that no address has.
func (c *Compiler) forget(gone []*identity) {
	for _, i := range gone {
		if i.number != 0 { // no other one has it now
			c.forgetRows(i)
			c.numbers.release(i.id)
		}
		c.blocks.leave(i)
		if i.content != nil {
			delete(i.identities, i)
		}
		delete(c.identities, i.id)
	}
}
