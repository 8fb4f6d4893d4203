// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
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
	addresses  table[netip.Prefix, uint32]
	endpoints  table[netip.Addr, Sets]
	portTables map[uint32]*portTable
	unused     map[uint32]bool // tables of ports that may be

	blocks     blocks
	hosts      map[netip.Prefix]*content  // of whole addresses
	prefixes   map[netip.Prefix]*identity // all prefixes that have a row; nil: of identity 0
	identities map[Digest]*identity
	contents   map[Digest]*content
	labelled   map[label]map[*content]struct{}
	pods       map[netip.Addr]*pod // of this node, by their first address
	entries    map[Digest]*entry
	sets       map[Digest]*ruleSet
	left       []*ruleSet // by pods
	work       int        // of this change, and how much it may be
	limit      int
	renamed    *ruleSet // in place; its number has no digest until the next change
}

// pod is a pod of this node.
type pod struct {
	addresses []netip.Addr
	content   *content
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
		verdicts: newTable[VerdictKey, Verdict](), addresses: newTable[netip.Prefix, uint32](), endpoints: newTable[netip.Addr, Sets](),
		portTables: map[uint32]*portTable{}, unused: map[uint32]bool{}, blocks: newBlocks(), hosts: map[netip.Prefix]*content{},
		prefixes: map[netip.Prefix]*identity{}, identities: map[Digest]*identity{}, contents: map[Digest]*content{},
		labelled: map[label]map[*content]struct{}{}, pods: map[netip.Addr]*pod{}, entries: map[Digest]*entry{}, sets: map[Digest]*ruleSet{},
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
// two have, or is an *OverlapError or a *WorkError.
func (c *Compiler) Change(s Snapshot) (Changes, error) { return c.change(s, true) }

// Resume compiles a snapshot that is in force already, as the first one, however much its blocks overlap and however much work it is.
func (c *Compiler) Resume(s Snapshot) error {
	_, err := c.change(s, false)
	return err
}

func (c *Compiler) change(s Snapshot, check bool) (Changes, error) {
	if err := s.validatePods(); err != nil {
		return Changes{}, err
	}
	touched := map[netip.Prefix]bool{}
	pods := c.place(&s, touched)
	if err := c.enter(&s); err != nil {
		return Changes{}, err
	}
	c.selectPods(pods)
	gone := c.activate(pods)
	limit := 0
	if check {
		if err := c.checkOverlaps(); err != nil {
			return Changes{}, err
		}
		limit = MostWork
	}
	c.begin(limit)
	inPlace := c.settle(pods, touched, gone, len(s.Previous) > 0)
	if err := c.checkWork(); err != nil {
		return Changes{}, err
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
	pods := map[*pod]bool{}
	c.settle(pods, map[netip.Prefix]bool{}, c.activate(pods), false)
	return c.changes()
}

func (c *Compiler) changes() Changes {
	return Changes{
		c.numbers.changes(), c.rules.changes(), c.ports.changes(), c.verdicts.changes(), c.addresses.changes(), c.endpoints.changes(), Digest{},
	}
}

// place notes the pods and nodes of a snapshot, and whose addresses have come, gone or changed. It returns the pods of this node that
// came, or that policies may select otherwise than before.
func (c *Compiler) place(s *Snapshot, touched map[netip.Prefix]bool) map[*pod]bool {
	changed, hosts, here := map[*pod]bool{}, make(map[netip.Prefix]*content, len(c.hosts)), make(map[netip.Addr]*pod, len(c.pods))
	for _, n := range s.Nodes {
		is := c.describe(content{kind: aNode, labels: n.Labels, ownNode: n.Name == s.Node})
		for _, a := range n.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
		}
	}
	namespaces := s.namespaceLabels()
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.HostNetwork {
			continue
		}
		is := c.describe(content{kind: aPod, namespace: namespaces[p.Namespace], labels: p.Labels, ports: sortedPorts(p.Ports)})
		for _, a := range p.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
		}
		if p.enforced(s.Node) {
			here[p.Addresses[0].Unmap()] = c.placePod(p, is, changed)
		}
	}
	for at, is := range hosts {
		if was := c.hosts[at]; was != is {
			touched[at] = true
			is.addresses++
			if was != nil {
				was.addresses--
			}
		}
	}
	for at, was := range c.hosts {
		if hosts[at] == nil {
			touched[at] = true
			was.addresses--
		}
	}
	for first, p := range c.pods {
		if here[first] != p {
			c.leave(p)
		}
	}
	for id, is := range c.contents {
		if is.addresses == 0 {
			delete(c.contents, id)
			c.index(is, func(set map[*content]struct{}) { delete(set, is) })
		}
	}
	c.hosts, c.pods = hosts, here
	return changed
}

// placePod returns a pod of this node, and notes whether it changed. Its addresses make it what it is.
func (c *Compiler) placePod(p *Pod, is *content, changed map[*pod]bool) *pod {
	had := c.pods[p.Addresses[0].Unmap()]
	if had == nil || !slices.Equal(had.addresses, p.Addresses) {
		had = &pod{addresses: slices.Clone(p.Addresses), entries: map[*entry]struct{}{}}
	}
	if had.content != is || !slices.Equal(had.ports, p.Ports) {
		if had.content != nil {
			delete(had.content.pods, had)
		}
		had.content, had.ports = is, slices.Clone(p.Ports)
		if is.pods == nil {
			is.pods = map[*pod]struct{}{}
		}
		is.pods[had] = struct{}{}
		changed[had] = true
	}
	return had
}

// leave forgets a pod of this node.
func (c *Compiler) leave(p *pod) {
	for e := range p.entries {
		delete(e.pods, p)
	}
	delete(p.content.pods, p)
	for _, list := range p.sets {
		c.left = append(c.left, list[:]...)
	}
	for _, a := range p.addresses {
		c.endpoints.remove(mapped(a))
	}
}

func sortedPorts(ports []NamedPort) []NamedPort {
	return slices.Compact(slices.SortedFunc(slices.Values(ports), func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	}))
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
			for _, is := range c.selected(e.Subject) {
				for p := range is.pods {
					e.pods[p], p.entries[e] = struct{}{}, struct{}{}
				}
			}
			continue
		}
		for p := range changed {
			if e.Subject.matches(p.content.namespace, p.content.labels) {
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
		stays := e.in != [2]bool{}
		if stays && len(e.pods) > 0 && !e.active() {
			c.prepare(e)
		} else if e.active() && !(stays && len(e.pods) > 0) {
			gone = append(gone, e)
		}
		if !stays {
			delete(c.entries, id)
			for p := range e.pods {
				delete(p.entries, e)
			}
		}
	}
	return gone
}

// settle makes all that follows from policies, pods and addresses, once policies are active. It returns the digest that a rule set had which
// has changed in place.
func (c *Compiler) settle(changed map[*pod]bool, touched map[netip.Prefix]bool, gone []*entry, protect bool) (inPlace Digest) {
	if c.renamed != nil {
		c.numbers.put(c.renamed.id, c.renamed.number)
		c.renamed = nil
	}
	for _, e := range gone {
		c.dismiss(e)
	}
	c.blocks.touched(c.prefixes, touched)
	fresh, old := c.identify(touched)
	c.decideFresh(fresh)
	if protect && len(c.addresses.had) == 0 { // otherwise an address would meet the new row with the identity of before
		inPlace = c.changeInPlace(changed)
	}
	c.enforce(changed, inPlace != Digest{})
	c.forget(old)
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
	return inPlace
}

// differs reports whether it comes or goes.
func (e *entry) differs() bool { return e.in[enforced] != e.in[previous] }

// enforce gives pods the rule sets of the policies that select them.
func (c *Compiler) enforce(changed map[*pod]bool, inPlace bool) {
	for p := range changed {
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
			c.left = append(c.left, list[:]...)
		}
		now := Sets{p.sets[enforced][Egress].ref(), p.sets[enforced][Ingress].ref()}
		for _, a := range p.addresses {
			c.endpoints.put(mapped(a), now)
		}
	}
	for _, set := range c.left {
		c.drop(set)
	}
	c.left = nil
}

// forget deletes what there is of identities that no address has.
func (c *Compiler) forget(gone []*identity) {
	for _, i := range gone {
		for _, set := range c.sets {
			c.setVerdict(VerdictKey{set.number, i.number}, nil)
		}
		c.blocks.leave(i)
		if i.content != nil {
			delete(i.identities, i)
		}
		delete(c.identities, i.id)
		c.numbers.release(i.id)
	}
}
