// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// Rows of the maps of services. A service that changes needs rows beside those that it has, so a part of each map stays free. Once more are asked for than
// full sixteenths of one, there have to be less than settled, until all have room again: what is at a limit does not come and go.
const (
	full    = 12
	settled = 10
)

// counts are numbers of rows, by map.
type counts [4]int

// The maps, by their names.
const (
	serviceRows = iota
	backendRows
	tableRows
	rangeRows
)

var mapNames = [...]string{"services", "backends", "tables", "source_ranges"}

func countsOf(r rows.Counts) counts {
	return counts{r.Services, r.Backends, r.Blocks, r.SourceRanges}
}

// add adds some rows, or with -1 takes them.
func (r *counts) add(more counts, sign int) {
	for i := range r {
		r[i] += sign * more[i]
	}
}

// RoomError tells that there is no room for what a Service asks for.
type RoomError struct{ text string }

func (e *RoomError) Error() string { return e.text }

// lack is what a Service lacks: its backends, or all.
type lack struct {
	all bool
	why string
}

// room divides the maps between the Services of namespaces.
type room struct {
	size  counts // of the maps; 0: without a limit
	need  map[manifest.Name]counts
	sum   counts
	lacks map[manifest.Name]lack
}

func newRoom(size rows.Counts) *room {
	return &room{size: countsOf(size), need: map[manifest.Name]counts{}, lacks: map[manifest.Name]lack{}}
}

// note notes what a Service stands for.
func (r *room) note(n manifest.Name, services []service.Service) {
	r.sum.add(r.need[n], -1)
	delete(r.need, n)
	if len(services) == 0 {
		return
	}
	var need counts
	for _, s := range services {
		need.add(countsOf(rows.Count(s)), 1)
	}
	r.need[n] = need
	r.sum.add(need, 1)
}

// over reports whether rows exceed some sixteenths of a map.
func (r *room) over(sum counts, of int, sixteenths int) bool {
	return r.size[of] > 0 && 16*sum[of] > sixteenths*r.size[of]
}

// divide finds out which Services lack something, and returns those of which that is new or has ended.
func (r *room) divide() (changed []manifest.Name) {
	limit := full
	if len(r.lacks) > 0 {
		limit = settled
	}
	had := r.lacks
	r.lacks = map[manifest.Name]lack{}
	left := r.sum
	for of := range r.size {
		if r.over(left, of, limit) {
			r.take(of, &left)
		}
	}
	for n, l := range r.lacks {
		if was, ok := had[n]; !ok || was.all != l.all {
			changed = append(changed, n)
		}
	}
	for n := range had {
		if _, ok := r.lacks[n]; !ok {
			changed = append(changed, n)
		}
	}
	return changed
}

// take takes rows of a map from the Services that need most of them in the namespaces that need most, until few are left. Whoever needs little
// keeps it, and so does each namespace that needs less than its part.
func (r *room) take(of int, left *counts) {
	services, sums := map[string][]manifest.Name{}, map[string]int{}
	for n, need := range r.need {
		if _, lacks := r.lacks[n]; !lacks && need[of] > 0 {
			services[n.Namespace] = append(services[n.Namespace], n)
			sums[n.Namespace] += need[of]
		}
	}
	sorted := map[string]bool{}
	for r.over(*left, of, settled) && len(sums) > 0 {
		most := slices.MaxFunc(slices.Collect(maps.Keys(sums)), func(a, b string) int { return cmp.Or(cmp.Compare(sums[a], sums[b]), cmp.Compare(a, b)) })
		if !sorted[most] {
			slices.SortFunc(services[most], func(a, b manifest.Name) int { return cmp.Or(cmp.Compare(r.need[a][of], r.need[b][of]), a.Compare(b)) })
			sorted[most] = true
		}
		last := len(services[most]) - 1
		n := services[most][last]
		services[most] = services[most][:last]
		need, l := r.need[n], lack{all: of == serviceRows}
		if sums[most] -= need[of]; last == 0 {
			delete(sums, most)
		}
		if l.why = "it has no backends"; l.all {
			l.why = "it is not served"
		} else {
			need[serviceRows] = 0
		}
		l.why = fmt.Sprintf("%s: the Services of its namespace need the most rows of map %q, which has no room for all", l.why, mapNames[of])
		r.lacks[n] = l
		left.add(need, -1)
	}
}

// leave returns what is left of a service of a Service; nil: nothing. It notes why, if it lacks something.
func (r *room) leave(of manifest.Name, s service.Service, lacking failures) *service.Service {
	l, lacks := r.lacks[of]
	if !lacks {
		return &s
	}
	lacking.add(s.Key(), &RoomError{l.why})
	if l.all {
		return nil
	}
	s.Backends, s.SourceRanges = nil, nil
	return &s
}
