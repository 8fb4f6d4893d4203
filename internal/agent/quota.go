// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// counts are numbers of rows, in the order of mapNames.
type counts [4]int

var mapNames = [...]string{"frontend", "backend", "look-up table", "source range"}

func countsOf(r rows.Counts) counts { return counts{r.Services, r.Backends, r.Blocks, r.SourceRanges} }

func (c counts) plus(d counts, factor int) counts {
	for i := range c {
		c[i] += factor * d[i]
	}
	return c
}

// over returns a map of which c has more rows than limit; -1: none. A limit of 0 is none.
func (c counts) over(limit counts) int {
	for i := range c {
		if limit[i] > 0 && c[i] > limit[i] {
			return i
		}
	}
	return -1
}

// QuotaError reports that a Service is not programmed, since its namespace would have more rows of a map than its
// quota.
type QuotaError struct{ Text string }

func (e *QuotaError) Error() string { return e.Text }

// quota limits the rows of each map that the Services of a namespace have. The oldest Services of a namespace are
// programmed, as many as fit: a new Service takes no rows from another.
type quota struct {
	limit   counts
	compare func(a, b manifest.Name) int
	of      map[string]*usage
	changed map[string]bool // namespaces whose needs have changed
}

// usage is what the Services of one namespace need.
type usage struct {
	need    map[manifest.Name]counts
	sum     counts
	refused map[manifest.Name]*QuotaError
}

// newQuota returns the quota of a namespace where it has one part in so many of each map.
func newQuota(size rows.Counts, parts int, compare func(a, b manifest.Name) int) *quota {
	limit := countsOf(size)
	for i, n := range limit {
		limit[i] = min(n, max(1, n/max(1, parts)))
	}
	return &quota{limit, compare, map[string]*usage{}, map[string]bool{}}
}

// set notes the services of a Service.
func (q *quota) set(n manifest.Name, services []service.Service) {
	of := q.of[n.Namespace]
	if of == nil {
		of = &usage{need: map[manifest.Name]counts{}}
		q.of[n.Namespace] = of
	}
	var need counts
	for _, s := range services {
		need = need.plus(countsOf(rows.Count(s)), 1)
	}
	of.sum = of.sum.plus(of.need[n], -1).plus(need, 1)
	if of.need[n] = need; len(services) == 0 {
		delete(of.need, n)
	}
	q.changed[n.Namespace] = true
}

// update decides anew which Services are programmed in namespaces whose needs have changed, and returns those of which
// that has changed.
func (q *quota) update() (changed []manifest.Name) {
	for namespace := range q.changed {
		of := q.of[namespace]
		before := of.refused
		of.refused = nil
		if of.sum.over(q.limit) >= 0 {
			of.refused = q.refuse(namespace, of.need)
		}
		for n := range of.refused {
			if was := before[n]; was != nil {
				of.refused[n] = was // the same text, so that there is one event, whatever the numbers are now
			} else {
				changed = append(changed, n)
			}
		}
		for n := range before {
			if of.refused[n] == nil {
				changed = append(changed, n)
			}
		}
		if len(of.need) == 0 {
			delete(q.of, namespace)
		}
	}
	clear(q.changed)
	return changed
}

// refuse returns the Services of a namespace that are not programmed: those that need more than the quota by
// themselves, and from the first that does not fit all younger ones. If smaller ones were programmed in its place, they
// would have to go once there are rows for it.
func (q *quota) refuse(namespace string, need map[manifest.Name]counts) map[manifest.Name]*QuotaError {
	refused := map[manifest.Name]*QuotaError{}
	var sum counts
	for _, n := range slices.SortedFunc(maps.Keys(need), q.compare) {
		asked := need[n]
		if asked.over(q.limit) < 0 {
			sum = sum.plus(asked, 1)
			asked = sum
		}
		if of := asked.over(q.limit); of >= 0 {
			refused[n] = &QuotaError{q.describe(namespace, of, asked)}
		}
	}
	return refused
}

func (q *quota) describe(namespace string, of int, used counts) string {
	return fmt.Sprintf("namespace %s: %s of %s %s rows", namespace, grouped(used[of]), grouped(q.limit[of]), mapNames[of])
}

// refusal returns why a Service is not programmed; nil: it is.
func (q *quota) refusal(n manifest.Name) error {
	if of := q.of[n.Namespace]; of != nil && of.refused[n] != nil {
		return of.refused[n]
	}
	return nil
}

// maxNamed is how many Services a line about a namespace names.
const maxNamed = 10

// lines returns a line for each namespace above its quota: "namespace shop: 9,114 of 8,192 frontend rows; not
// programmed: shop/a, shop/b".
func (q *quota) lines() (all []string) {
	for _, namespace := range slices.Sorted(maps.Keys(q.of)) {
		of := q.of[namespace]
		i := of.sum.over(q.limit)
		if i < 0 {
			continue
		}
		var names []string
		for _, n := range slices.SortedFunc(maps.Keys(of.refused), q.compare) {
			if len(names) == maxNamed {
				names = append(names, grouped(len(of.refused)-maxNamed)+" more")
				break
			}
			names = append(names, n.String())
		}
		all = append(all, q.describe(namespace, i, of.sum)+"; not programmed: "+strings.Join(names, ", "))
	}
	return all
}

// grouped returns "65,536".
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
