// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Changes turn one set of rows into another. They are safe when written in the order of the fields, first all puts: a
// row exists before another refers to it, and an address gets its identity before an endpoint's rule set uses that.
// Then deletions follow in the reverse order.
type Changes struct {
	Numbers   Change[Digest, uint32]
	Ports     Change[PortKey, PortVerdict]
	Verdicts  Change[VerdictKey, Verdict]
	Addresses Change[netip.Prefix, uint32]
	Endpoints Change[netip.Addr, Sets]
}

// Change is what to write to one map.
type Change[K comparable, V any] struct {
	Put    map[K]V
	Delete []K
}

// Diff returns the changes that turn have into want.
func Diff(have, want Rows) Changes {
	return Changes{
		change(have.Numbers, want.Numbers), change(have.Ports, want.Ports),
		change(have.Verdicts, want.Verdicts), change(have.Addresses, want.Addresses), change(have.Endpoints, want.Endpoints),
	}
}

// Len returns the number of rows to write.
func (c *Changes) Len() int {
	return c.Numbers.len() + c.Ports.len() + c.Verdicts.len() + c.Addresses.len() + c.Endpoints.len()
}

func (c Change[K, V]) len() int { return len(c.Put) + len(c.Delete) }

func change[K, V comparable](have, want map[K]V) Change[K, V] {
	c := Change[K, V]{Put: map[K]V{}}
	for k, v := range want {
		if had, ok := have[k]; !ok || had != v {
			c.Put[k] = v
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			c.Delete = append(c.Delete, k)
		}
	}
	return c
}

// Steps returns the sets of rows to write one after the other, starting from have. The last one is for the snapshot
// without Previous; it is empty if the snapshot has no policies. Objects in have keep their numbers.
func Steps(s Snapshot, have Rows, l Limits) ([]Rows, error) {
	alone := s
	if alone.Previous = nil; len(s.Policies) == 0 {
		alone = Snapshot{}
	}
	if s.Previous == nil || s.keeps(s.Previous) {
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
		last, err := compile(alone, with(both), Limits{})
		return []Rows{both, last}, err
	}
	last, err := compile(alone, have, l)
	if err != nil {
		return []Rows{last}, err
	}
	both, err := compile(s, with(last), Limits{Work: 4 * l.Work}) // each alone is within the limit
	return []Rows{both, last}, err
}

// keeps reports whether a snapshot has all policies of one before and no others, and pods of this node as they were.
func (s *Snapshot) keeps(before *Snapshot) bool {
	if !slices.EqualFunc(s.Policies, before.Policies, func(a, b Policy) bool { return a.Digest() == b.Digest() }) {
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
