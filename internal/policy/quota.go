// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Quota limits what the NetworkPolicies of one namespace may add on a node.
type Quota struct {
	// Verdicts, Ports, Ranges and Numbers are rows of maps. Overlaps count like [MostOverlaps], Work like [MostWork].
	Verdicts, Ports, Ranges, Numbers, Overlaps, Work int
}

// QuotaError lists the namespaces above their quota, sorted by name.
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
// In a rule set, each namespace pays for as many rows as its rules distinguish classes of peers. So a namespace pays
// for what its rule sets would have alone, and for what its ranges and labels add to the rule sets of others. It does
// not pay for what others add to its own. Rows that only ClusterNetworkPolicies make count for no namespace.
type meter struct {
	limit   Quota
	made    map[string]*Quota // by namespace
	full    bool              // a namespace has used its work: counting can stop
	tables  map[tableOf]bool
	owners  map[*block]map[string]int
	seed    maphash.Seed
	covers  map[*cover]map[string]uint64 // how namespaces sort by blocks
	classes map[*identity][]class

	namespace string         // of the rule set that is filled
	seen      map[class]bool // in its rows
}

// tableOf is a table of ports in the rule sets of a namespace.
type tableOf struct {
	namespace string
	table     uint32
}

// class is a class of peers that the rules of a namespace distinguish, by the labels and blocks that they name; 0: by
// none.
type class struct {
	namespace string
	sort      uint64
}

func newMeter(limit Quota) *meter {
	return &meter{
		limit: limit, made: map[string]*Quota{}, tables: map[tableOf]bool{},
		owners: map[*block]map[string]int{}, seed: maphash.MakeSeed(), covers: map[*cover]map[string]uint64{},
		classes: map[*identity][]class{},
	}
}

func (m *meter) of(namespace string) *Quota {
	if m.made[namespace] == nil {
		m.made[namespace] = &Quota{}
	}
	return m.made[namespace]
}

// over returns the namespaces above the quota.
func (m *meter) over() (all []*LimitError) {
	if m == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m.made)) {
		made := m.made[name]
		for _, e := range []LimitError{
			{What: "ranges of addresses", Number: made.Ranges, Limit: m.limit.Ranges},
			{What: "overlaps of ranges", Number: made.Overlaps, Limit: m.limit.Overlaps},
			{What: "verdict rows", Number: made.Verdicts, Limit: m.limit.Verdicts},
			{What: "rows of ports", Number: made.Ports, Limit: m.limit.Ports},
			{What: "numbers of rules and rule sets", Number: made.Numbers, Limit: m.limit.Numbers},
			{What: workUnits, Number: made.Work, Limit: m.limit.Work},
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

// begin counts the rule set to fill next, and its row of identity 0.
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

// row counts a row of an identity for each namespace whose rules distinguish the peer from the rows before. For other
// namespaces than the set's, the first row of a rule set is free.
func (m *meter) row(c *compiler, i *identity, v Verdict) {
	if m == nil {
		return
	}
	own := class{namespace: m.namespace}
	count := func(of class) {
		if whole := (class{namespace: of.namespace}); of.namespace != m.namespace && !m.seen[whole] {
			m.seen[whole] = true
		} else if !m.seen[of] {
			m.verdict(of.namespace)
		}
		m.seen[of] = true
	}
	for _, of := range m.sorts(c, i) {
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

// name counts numbers, labels and blocks that the rules in force name.
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

// freeDepth is how many blocks of a namespace may contain one range at no cost: blocks such as 0.0.0.0/0 contain all
// ranges of other namespaces.
const freeDepth = 8

func note[K comparable](of map[K]map[string]int, k K, namespace string) {
	if of[k] == nil {
		of[k] = map[string]int{}
	}
	of[k][namespace]++
}

// sorts returns the class of an identity for each namespace whose rules use its labels or blocks.
func (m *meter) sorts(c *compiler, i *identity) []class {
	if all, ok := m.classes[i]; ok {
		return all
	}
	by := map[string]uint64{}
	if in := i.in; in != nil {
		if m.covers[in] == nil {
			m.covers[in] = map[string]uint64{}
			for _, b := range in.blocks {
				tell(m, m.covers[in], m.owners[b], b)
			}
		}
		maps.Copy(by, m.covers[in])
	}
	if of := i.content; of != nil {
		for _, l := range of.by { // in the order of their keys
			within := l
			within.in = of.namespace[NamespaceLabel]
			tell(m, by, c.asked.values[l], l)
			tell(m, by, c.asked.values[within], l)
		}
	}
	all := make([]class, 0, len(by))
	for name, sort := range by {
		all = append(all, class{name, sort})
	}
	m.classes[i] = all
	return all
}

// tell updates the class of each namespace in by, whose rules name what.
func tell[V any](m *meter, sorts map[string]uint64, by map[string]V, what any) {
	for name := range by {
		sorts[name] = maphash.Comparable(m.seed, told{sorts[name], what})
	}
}

// told is the input of a class: the class so far, and what rules name in addition.
type told struct {
	before uint64
	what   any
}
