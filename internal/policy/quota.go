// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Quota is how much the NetworkPolicies of one namespace may make on a node.
type Quota struct {
	// Verdicts, Ports, Ranges and Numbers are rows of maps. Overlaps are as those of [MostOverlaps], Work as that of [MostWork].
	Verdicts, Ports, Ranges, Numbers, Overlaps, Work int
}

// QuotaError has the namespaces above their quota, sorted by name.
type QuotaError struct{ Over []*LimitError }

func (e *QuotaError) Error() string {
	lines := make([]string, len(e.Over))
	for i, over := range e.Over {
		lines[i] = over.Error()
	}
	return "policies above the quota: " + strings.Join(lines, "; ")
}

// meter counts the rows of each namespace. ClusterNetworkPolicies count as namespace "", without a quota.
//
// Of the rows of a rule set, as many count for a namespace as its rules tell peers of these rows apart. So a namespace pays for what its rule sets
// would have by themselves, and for what its ranges and labels make of the rule sets of others; what others make of its own costs it nothing.
// Rows that ClusterNetworkPolicies alone make are nobody's.
type meter struct {
	limit   Quota
	of      map[string]*usage
	tables  map[tableOf]bool
	owners  map[*block]map[string]int
	classes map[*identity][]class // without those of namespaces that have one

	set  *ruleSet // that is filled
	seen map[class]bool
	rows map[string]int // of this set, by namespace; of others than its own one more
}

// usage is what a namespace has of its quota, and how it tells peers apart.
type usage struct {
	Quota
	told told
}

// tableOf is a table of ports that rule sets of a namespace have.
type tableOf struct {
	namespace string
	table     uint32
}

// class is one of the sorts of peers that the rules of a namespace tell apart, by the labels and by the blocks that they name; 0: none.
type class struct {
	namespace      string
	labels, blocks uint32
}

func newMeter(limit Quota) *meter {
	return &meter{
		limit: limit, of: map[string]*usage{}, tables: map[tableOf]bool{},
		owners: map[*block]map[string]int{}, classes: map[*identity][]class{},
	}
}

func (m *meter) usage(namespace string) *usage {
	u := m.of[namespace]
	if u == nil {
		u = &usage{told: newTold()}
		m.of[namespace] = u
	}
	return u
}

// over returns who is above the quota.
func (m *meter) over() (all []*LimitError) {
	if m == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m.of)) {
		u := m.of[name]
		for _, e := range []LimitError{
			{What: "ranges of addresses", Number: u.Ranges, Limit: m.limit.Ranges}, {What: "overlaps of ranges", Number: u.Overlaps, Limit: m.limit.Overlaps},
			{What: "verdict rows", Number: u.Verdicts, Limit: m.limit.Verdicts}, {What: "rows of ports", Number: u.Ports, Limit: m.limit.Ports},
			{What: "numbers of rules and rule sets", Number: u.Numbers, Limit: m.limit.Numbers}, {What: workUnits, Number: u.Work, Limit: m.limit.Work},
		} {
			if name != "" && e.Number > e.Limit {
				e.Namespace = name
				all = append(all, &e)
				break
			}
		}
	}
	return all
}

// spent reports whether the namespace whose rule set is filled is above its quota: what more it makes need not be known.
func (m *meter) spent() bool {
	return m != nil && m.set != nil && m.set.namespace != "" && m.of[m.set.namespace].Work > m.limit.Work
}

// use counts work of a rule set's own rules.
func (m *meter) use(set *ruleSet, n int) {
	if m != nil {
		u := m.usage(set.namespace)
		u.Work = min(u.Work+n, m.limit.Work+1)
	}
}

// begin notes which rule set is filled next.
func (m *meter) begin(set *ruleSet) {
	if m != nil {
		m.usage(set.namespace).Numbers++
		m.set, m.seen, m.rows = set, map[class]bool{}, map[string]int{set.namespace: 1} // that of identity 0
	}
}

// end counts the rows of the set, unless it is not complete.
func (m *meter) end(c *compiler) {
	if m == nil {
		return
	}
	if !c.exhausted() {
		for name, n := range m.rows {
			if name != m.set.namespace {
				n--
			}
			u := m.usage(name)
			u.Verdicts, u.Work = u.Verdicts+n, min(u.Work+n*rowWork, m.limit.Work+1)
		}
	}
	m.set = nil
}

// row counts a row about an identity.
func (m *meter) row(c *compiler, i *identity, v Verdict) {
	own := class{namespace: m.set.namespace}
	count := func(of class) {
		if !m.seen[of] {
			m.seen[of] = true
			m.rows[of.namespace]++
		}
	}
	for _, of := range m.classes[i] {
		if of.namespace == own.namespace {
			own = of
		} else {
			count(of)
		}
	}
	count(own)
	if at := (tableOf{own.namespace, v.Ports}); v.Ports != 0 && !m.tables[at] {
		m.tables[at] = true
		u := m.usage(own.namespace)
		u.Ports, u.Numbers = u.Ports+c.tableSizes[v.Ports], u.Numbers+1
	}
}

// rules counts what the rules in force name. The error is that some name too much to compile.
func (m *meter) rules(c *compiler) error {
	if m == nil {
		return nil
	}
	for _, e := range c.entries {
		u := m.usage(e.Namespace)
		u.told.namespaces = c.told.namespaces
		u.told.count(e.Policy)
		for _, q := range e.prepared {
			if q == nil {
				continue
			}
			u.Numbers += 1 + len(q.clauses)
			for _, rule := range q.clauses {
				for _, b := range rule.blocks {
					note(m.owners, b, e.Namespace)
				}
			}
		}
	}
	wide := map[netip.Prefix]map[string]int{} // how many blocks of namespaces are a range, without its exceptions
	ranges := map[netip.Prefix]map[string]int{}
	for b, names := range m.owners {
		for name := range names {
			note(wide, b.CIDR, name)
			for _, p := range append([]netip.Prefix{b.CIDR}, b.Except...) {
				note(ranges, p, name)
			}
		}
	}
	for p, names := range ranges {
		depth := map[string]int{}
		for _, q := range c.blocks.around(p) {
			for name, n := range wide[q] {
				depth[name] += n
			}
		}
		for name := range names {
			m.of[name].Ranges++
		}
		for name, n := range depth {
			m.of[name].Overlaps += max(0, n-freeDepth)
		}
	}
	for _, u := range m.of {
		u.Work, u.Numbers = u.Work+u.told.work(), u.Numbers+len(u.told.values)
	}
	if over := m.over(); len(over) > 0 {
		return &QuotaError{over}
	}
	return nil
}

// freeDepth is how many blocks of a namespace may hold one range at no cost: blocks such as 0.0.0.0/0 hold the ranges of all others.
const freeDepth = 8

func note[K comparable](of map[K]map[string]int, k K, namespace string) {
	if of[k] == nil {
		of[k] = map[string]int{}
	}
	of[k][namespace]++
}

// sorts are numbers of what namespaces tell apart.
type sorts map[string]uint32

// of returns the numbers of keys, by namespace.
func (n sorts) of(keys map[string][]byte) map[string]uint32 {
	out := make(map[string]uint32, len(keys))
	for namespace, key := range keys {
		if n[string(key)] == 0 {
			n[string(key)] = uint32(len(n) + 1)
		}
		out[namespace] = n[string(key)]
	}
	return out
}

// classify finds out who tells identities apart.
func (m *meter) classify(c *compiler) {
	if m == nil {
		return
	}
	asking := map[label][]string{}
	for name, u := range m.of {
		for l := range u.told.values {
			asking[l] = append(asking[l], name)
		}
	}
	all, places := sorts{}, map[*block]uint64{}
	byBlocks, byLabels := map[*cover]map[string]uint32{}, map[*content]map[string]uint32{}
	for _, in := range c.blocks.covers {
		keys := map[string][]byte{}
		for _, b := range in.blocks {
			if places[b] == 0 {
				places[b] = uint64(len(places) + 1)
			}
			for name := range m.owners[b] {
				keys[name] = binary.AppendUvarint(keys[name], places[b])
			}
		}
		byBlocks[in] = all.of(keys)
	}
	for _, of := range c.contents {
		keys := map[string][]byte{}
		for _, l := range of.by { // in the order of their keys
			for _, name := range asking[l] {
				if m.of[name].told.asks(l, false, of.namespace) {
					keys[name] = fmt.Appendf(keys[name], "%t %q %q ", l.ofNamespace, l.key, l.value)
				}
			}
		}
		byLabels[of] = all.of(keys)
	}
	first, several := map[string]class{}, map[string]bool{}
	for _, i := range c.identities {
		for _, names := range []map[string]uint32{byBlocks[i.in], byLabels[i.content]} {
			for name := range names {
				of := class{name, byLabels[i.content][name], byBlocks[i.in][name]}
				if !slices.Contains(m.classes[i], of) {
					m.classes[i] = append(m.classes[i], of)
				}
				if had, ok := first[name]; ok && had != of {
					several[name] = true
				}
				first[name] = of
			}
		}
	}
	for i, of := range m.classes {
		m.classes[i] = slices.DeleteFunc(of, func(of class) bool { return !several[of.namespace] })
	}
}
