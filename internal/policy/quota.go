// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Quota limits the rows and work that the NetworkPolicies of one namespace may add on a node.
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

func (m *meter) of(namespace string) *Quota {
	if m.made[namespace] == nil {
		m.made[namespace] = &Quota{}
	}
	return m.made[namespace]
}

func (m *meter) over() (all []*LimitError) {
	if m == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m.made)) {
		made := m.made[name]
		e := exceeded([]LimitError{
			{What: "ranges of addresses", Number: made.Ranges, Limit: m.limit.Ranges},
			{What: "overlaps of ranges", Number: made.Overlaps, Limit: m.limit.Overlaps},
			{What: "verdict rows", Number: made.Verdicts, Limit: m.limit.Verdicts},
			{What: "rows of ports", Number: made.Ports, Limit: m.limit.Ports},
			{What: "numbers of rules and rule sets", Number: made.Numbers, Limit: m.limit.Numbers},
			{What: workUnits, Number: made.Work, Limit: m.limit.Work},
		})
		if name != "" && e != nil {
			e.Namespace = name
			all = append(all, e)
		}
	}
	return all
}

func (m *meter) use(namespace string, n int) {
	if m != nil {
		made := m.of(namespace)
		made.Work = min(made.Work+n, m.limit.Work+1)
		m.full = m.full || namespace != "" && made.Work > m.limit.Work
	}
}

func (m *meter) verdict(namespace string) {
	m.of(namespace).Verdicts++
	m.use(namespace, rowWork)
}

// mostForeign limits in how many rule sets of other namespaces a class of peers counts for its namespace. More rule
// sets do not isolate a namespace with few classes: 512 classes take the default quota of 32,768 rows.
const mostForeign = 64

// row counts a row for each namespace whose rules distinguish the peer from the rows before. The first row in a rule
// set of another namespace is free.
func (m *meter) row(c *compiler, i *identity, v Verdict) {
	if m == nil {
		return
	}
	sorts := m.sorts(c, i)
	own := class{m.namespace, sorts[m.namespace]}
	if !m.seen[own] {
		m.seen[own] = true
		m.verdict(own.namespace)
	}
	for namespace, sort := range sorts {
		of, whole := class{namespace, sort}, class{namespace: namespace}
		if m.seen[whole] && !m.seen[of] && m.foreign[of] < mostForeign {
			m.foreign[of]++
			m.verdict(namespace)
		}
		if namespace != own.namespace {
			m.seen[of], m.seen[whole] = true, true
		}
	}
	if at := (class{m.namespace, uint64(v.Ports)}); v.Ports != 0 && !m.tables[at] {
		m.tables[at] = true
		made := m.of(m.namespace)
		made.Ports, made.Numbers = made.Ports+c.tableSizes[v.Ports], made.Numbers+1
	}
}

const freeDepth = 8 // how many blocks of a namespace, such as 0.0.0.0/0, may contain one range at no cost

func (m *meter) name(c *compiler) {
	if m == nil {
		return
	}
	wide := map[netip.Prefix]map[string]int{} // how many blocks of namespaces are a range, without its exceptions
	ranges := map[netip.Prefix]map[string]int{}
	for _, e := range c.entries {
		for _, q := range e.prepared {
			if q == nil {
				continue
			}
			m.of(e.Namespace).Numbers += 1 + len(q.clauses)
			for _, rule := range q.clauses {
				for _, b := range rule.blocks {
					if count(m.owners, b, e.Namespace) > 1 {
						continue
					}
					count(wide, b.CIDR, e.Namespace)
					for _, p := range append([]netip.Prefix{b.CIDR}, b.Except...) {
						count(ranges, p, e.Namespace)
					}
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

func count[K comparable](of map[K]map[string]int, k K, namespace string) int {
	if of[k] == nil {
		of[k] = map[string]int{}
	}
	of[k][namespace]++
	return of[k][namespace]
}

// sorts returns the class of an identity for each namespace whose rules use its labels or blocks.
func (m *meter) sorts(c *compiler, i *identity) map[string]uint64 {
	if sorts, ok := m.classes[i]; ok {
		return sorts
	}
	sorts := map[string]uint64{}
	if in := i.in; in != nil {
		if m.covers[in] == nil {
			m.covers[in] = map[string]uint64{}
			for _, b := range in.blocks {
				distinguish(m, m.covers[in], m.owners[b], b)
			}
		}
		maps.Copy(sorts, m.covers[in])
	}
	if of := i.content; of != nil {
		for _, l := range of.by { // in the order of their keys
			within := l
			within.in = of.namespace[NamespaceLabel]
			distinguish(m, sorts, c.asked.values[l], l)
			distinguish(m, sorts, c.asked.values[within], l)
		}
	}
	m.classes[i] = sorts
	return sorts
}

func distinguish[V any](m *meter, sorts map[string]uint64, by map[string]V, what any) {
	for name := range by {
		sorts[name] = maphash.Comparable(m.seed, [2]any{sorts[name], what})
	}
}
