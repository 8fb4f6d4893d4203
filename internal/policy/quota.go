// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"iter"
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
	made    map[string]*Quota // by namespace
	full    bool              // a namespace has no work left: what more it makes need not be known
	tables  map[tableOf]bool
	owners  map[*block]map[string]int
	classes map[*identity][]class // without those of namespaces that have one

	namespace string         // of the rule set that is filled
	seen      map[class]bool // in its rows
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
		limit: limit, made: map[string]*Quota{}, tables: map[tableOf]bool{},
		owners: map[*block]map[string]int{}, classes: map[*identity][]class{},
	}
}

func (m *meter) of(namespace string) *Quota {
	if m.made[namespace] == nil {
		m.made[namespace] = &Quota{}
	}
	return m.made[namespace]
}

// over returns who is above the quota.
func (m *meter) over() (all []*LimitError) {
	if m == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m.made)) {
		made := m.made[name]
		for _, e := range []LimitError{
			{What: "ranges of addresses", Number: made.Ranges, Limit: m.limit.Ranges}, {What: "overlaps of ranges", Number: made.Overlaps, Limit: m.limit.Overlaps},
			{What: "verdict rows", Number: made.Verdicts, Limit: m.limit.Verdicts}, {What: "rows of ports", Number: made.Ports, Limit: m.limit.Ports},
			{What: "numbers of rules and rule sets", Number: made.Numbers, Limit: m.limit.Numbers}, {What: workUnits, Number: made.Work, Limit: m.limit.Work},
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

// use counts work of a namespace.
func (m *meter) use(namespace string, n int) {
	if m != nil {
		made := m.of(namespace)
		made.Work = min(made.Work+n, m.limit.Work+1)
		m.full = m.full || namespace != "" && made.Work > m.limit.Work
	}
}

// begin counts a rule set that is filled next, and its row of identity 0.
func (m *meter) begin(set *ruleSet) {
	if m != nil {
		m.namespace, m.seen = set.namespace, map[class]bool{}
		m.of(set.namespace).Numbers++
		m.verdict(set.namespace)
	}
}

func (m *meter) verdict(namespace string) {
	m.of(namespace).Verdicts++
	m.use(namespace, rowWork)
}

// row counts a row about an identity: for the namespace of the rule set if its rules tell the peer from others, and for other namespaces likewise,
// but for one row.
func (m *meter) row(c *compiler, i *identity, v Verdict) {
	if m == nil {
		return
	}
	own := class{namespace: m.namespace}
	count := func(of class) {
		if any := (class{namespace: of.namespace}); of.namespace != m.namespace && !m.seen[any] {
			m.seen[any] = true
		} else if !m.seen[of] {
			m.verdict(of.namespace)
		}
		m.seen[of] = true
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
		made := m.of(own.namespace)
		made.Ports, made.Numbers = made.Ports+c.tableSizes[v.Ports], made.Numbers+1
	}
}

// name counts what the rules in force name.
func (m *meter) name(c *compiler) {
	if m == nil {
		return
	}
	for _, e := range c.entries {
		for _, q := range e.prepared {
			if q == nil {
				continue
			}
			m.of(e.Namespace).Numbers += 1 + len(q.clauses)
			for _, rule := range q.clauses {
				for _, b := range rule.blocks {
					note(m.owners, b, e.Namespace)
				}
			}
		}
	}
	for _, names := range c.asked.values {
		for name := range names {
			m.of(name).Numbers++
			m.use(name, askedWork)
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
			m.of(name).Ranges++
		}
		for name, n := range depth {
			m.of(name).Overlaps += max(0, n-freeDepth)
		}
	}
}

// freeDepth is how many blocks of a namespace may hold one range at no cost: blocks such as 0.0.0.0/0 hold the ranges of all others.
const freeDepth = 8

func note[K comparable](of map[K]map[string]int, k K, namespace string) {
	if of[k] == nil {
		of[k] = map[string]int{}
	}
	of[k][namespace]++
}

// classify finds out who tells identities apart.
func (m *meter) classify(c *compiler) {
	if m == nil {
		return
	}
	numbers := map[string]uint32{}
	number := func(keys map[string][]byte) map[string]uint32 { // by namespace
		out := make(map[string]uint32, len(keys))
		for name, key := range keys {
			if numbers[string(key)] == 0 {
				numbers[string(key)] = uint32(len(numbers) + 1)
			}
			out[name] = numbers[string(key)]
		}
		return out
	}
	blocks, labels := map[*cover]map[string]uint32{}, map[*content]map[string]uint32{}
	for _, in := range c.blocks.covers {
		keys := map[string][]byte{}
		for _, b := range in.blocks {
			for name := range m.owners[b] {
				keys[name] = binary.AppendUvarint(keys[name], b.index)
			}
		}
		blocks[in] = number(keys)
	}
	for _, of := range c.contents {
		keys := map[string][]byte{}
		for _, l := range of.by { // in the order of their keys
			within := l
			within.in = of.namespace[NamespaceLabel]
			for name := range both(c.asked.values[l], c.asked.values[within]) {
				keys[name] = fmt.Appendf(keys[name], "%d %q %q ", l.of, l.key, l.value)
			}
		}
		labels[of] = number(keys)
	}
	first, several := map[string]class{}, map[string]bool{}
	for _, i := range c.identities {
		for name := range both(blocks[i.in], labels[i.content]) {
			of := class{name, labels[i.content][name], blocks[i.in][name]}
			m.classes[i] = append(m.classes[i], of)
			if had, ok := first[name]; ok && had != of {
				several[name] = true
			}
			first[name] = of
		}
	}
	for i, of := range m.classes {
		m.classes[i] = slices.DeleteFunc(of, func(of class) bool { return !several[of.namespace] })
	}
}

// both yields the keys of two maps, each once.
func both[V any](a, b map[string]V) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range a {
			if !yield(k) {
				return
			}
		}
		for k := range b {
			if _, ok := a[k]; !ok && !yield(k) {
				return
			}
		}
	}
}
