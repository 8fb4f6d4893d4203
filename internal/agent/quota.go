// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service/manifest"
)

type usage struct {
	rows    counts
	refused map[manifest.Name]*policy.LimitError
}

type counts [4]int

var mapNames = [...]string{"frontend", "backend", "look-up table", "source range"}

func countsOf(r rows.Counts) counts { return counts{r.Services, r.Backends, r.Blocks, r.SourceRanges} }

func (c *counts) add(d counts, factor int) {
	for i := range c {
		c[i] += factor * d[i]
	}
}

func (c counts) excess(limit counts, namespace string) *policy.LimitError {
	for i, n := range c {
		if limit[i] > 0 && n > limit[i] {
			return &policy.LimitError{Namespace: namespace, What: mapNames[i] + " rows", Number: n, Limit: limit[i]}
		}
	}
	return nil
}

// applyQuota decides which Services of a namespace are programmed: the oldest, as many as fit. It adds the frontends of
// Services whose decision has changed.
func (s *serviceSet) applyQuota(namespace string, c changes) {
	u := s.usage[namespace]
	before := u.refused
	if u.refused = nil; u.rows.excess(s.limit, namespace) != nil {
		u.refused = s.refuse(namespace)
	}
	if u.rows == (counts{}) {
		delete(s.usage, namespace)
	}
	either := map[manifest.Name]bool{}
	for n, e := range before {
		either[n] = true
		if u.refused[n] != nil {
			u.refused[n] = e // the same text, so that there is one event, whatever the numbers are now
		}
	}
	for n := range u.refused {
		either[n] = !either[n]
	}
	for n, changed := range either {
		for _, v := range s.record(n).desired {
			if changed && s.holder(v.Key()) == n {
				c[v.Key()] = &v
			}
		}
	}
}

// refuse returns the Services of a namespace that are not programmed: each Service above the quota, the first that does
// not fit, and all younger ones. Smaller ones in its place would have to be removed once its rows are free.
func (s *serviceSet) refuse(namespace string) map[manifest.Name]*policy.LimitError {
	refused := map[manifest.Name]*policy.LimitError{}
	var sum counts
	names := slices.Collect(maps.Keys(s.records))
	names = slices.DeleteFunc(names, func(n manifest.Name) bool {
		return n.Namespace != namespace || s.records[n].rows == (counts{})
	})
	slices.SortFunc(names, s.compareAge)
	for _, n := range names {
		need := s.records[n].rows
		e := need.excess(s.limit, namespace)
		if e == nil {
			sum.add(need, 1)
			e = sum.excess(s.limit, namespace)
		}
		if e != nil {
			refused[n] = e
		}
	}
	return refused
}

func (s *serviceSet) refusal(n manifest.Name) error {
	if u := s.usage[n.Namespace]; u != nil && u.refused[n] != nil {
		return u.refused[n]
	}
	return nil
}

const maxNamed = 10

// overQuota returns "namespace shop: 9,114 of 8,192 frontend rows; not programmed: shop/a, shop/b" and the like.
func (s *serviceSet) overQuota() (lines []string) {
	for _, namespace := range slices.Sorted(maps.Keys(s.usage)) {
		u := s.usage[namespace]
		e := u.rows.excess(s.limit, namespace)
		if e == nil {
			continue
		}
		var names []string
		for _, n := range slices.SortedFunc(maps.Keys(u.refused), s.compareAge) {
			names = append(names, n.String())
		}
		if more := len(names) - maxNamed; more > 0 {
			names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
		}
		lines = append(lines, e.Error()+"; not programmed: "+strings.Join(names, ", "))
	}
	return lines
}
