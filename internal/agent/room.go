// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// Services may ask for so many quarters of the rows of a map: one that changes needs rows beside those that it has.
const fullQuarters = 3

// holdRoom is how long a Service goes without what there was no room for, at least: what others ask for may come and go.
const holdRoom = time.Minute

// counts are numbers of rows, by map.
type counts [4]int

// The maps.
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

// share is what a Service has of what it asks for.
type share struct {
	frontends bool // otherwise it is not served
	backends  int  // rows of them
	of        int  // the map that has no room
	asked     int  // rows of it that it asks for
}

// room divides the maps between the Services of namespaces.
type room struct {
	size   counts // of the maps; 0: without a limit
	need   map[manifest.Name]counts
	sum    counts
	shares map[manifest.Name]share // of those that lack something
	since  map[manifest.Name]time.Time
	held   bool // some have less than there is room for by now
	noted  bool // needs may have changed
}

func newRoom(size rows.Counts) *room {
	return &room{size: countsOf(size), need: map[manifest.Name]counts{}, shares: map[manifest.Name]share{}, since: map[manifest.Name]time.Time{}}
}

// note notes what a Service stands for.
func (r *room) note(n manifest.Name, services []service.Service) {
	r.noted = true
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

// limit returns how many rows of a map Services may have.
func (r *room) limit(of int) int {
	if r.size[of] == 0 {
		return math.MaxInt
	}
	return r.size[of] / 4 * fullQuarters
}

// divide finds out what each Service gets, and returns those that get more or less than before. Whoever lacks something gets no more for holdRoom, unless he asks for
// less.
func (r *room) divide(now time.Time) (changed []manifest.Name) {
	if !r.noted && !r.held {
		return nil
	}
	had := r.shares
	r.shares, r.held, r.noted = map[manifest.Name]share{}, false, false
	left := r.sum
	for _, of := range []int{serviceRows, tableRows, rangeRows} {
		r.take(of, &left)
	}
	r.cut(left)
	for n, was := range had {
		is, lacks := r.shares[n]
		asks := r.need[n][was.of]
		takes := asks >= was.asked && (was.of != backendRows || asks > was.backends) // whoever asks for less has it
		if takes && asks > 0 && now.Sub(r.since[n]) < holdRoom && (!lacks || is.frontends && is.backends > was.backends) {
			was.asked = asks
			r.shares[n], r.held = was, true
		} else if !lacks {
			delete(r.since, n)
			changed = append(changed, n)
		}
	}
	for n, is := range r.shares {
		was, lacked := had[n]
		if lacked && was == is {
			continue
		}
		if changed = append(changed, n); !lacked || was.backends != is.backends || was.frontends != is.frontends {
			r.since[n] = now
		}
	}
	return changed
}

// take takes all rows of a map from the Services that need most of them in the namespaces that need most, until few enough are left.
func (r *room) take(of int, left *counts) {
	limit := r.limit(of)
	if left[of] <= limit {
		return
	}
	lacked := map[string]bool{} // of two that need about the same, it is the one that lacks something already
	for n := range r.since {
		lacked[n.Namespace] = true
	}
	services, sums := r.byNamespace(of)
	var most heaviestFirst
	for namespace, sum := range sums {
		most = append(most, weight{weighed(sum, lacked[namespace]), namespace})
	}
	for heap.Init(&most); left[of] > limit && len(most) > 0; {
		namespace := most[0].namespace
		last := len(services[namespace]) - 1
		n := services[namespace][last]
		need := r.need[n]
		services[namespace], sums[namespace] = services[namespace][:last], sums[namespace]-need[of]
		if r.shares[n] = (share{frontends: of != serviceRows, of: of, asked: need[of]}); of != serviceRows {
			need[serviceRows] = 0
		}
		left.add(need, -1)
		if most[0].weight = weighed(sums[namespace], lacked[namespace]); last > 0 {
			heap.Fix(&most, 0)
		} else {
			heap.Pop(&most)
		}
	}
}

func weighed(sum int, lacked bool) int {
	if lacked {
		return 9 * sum
	}
	return 8 * sum
}

// weight is what a namespace needs, of which the one that lacks something needs more.
type weight struct {
	weight    int
	namespace string
}

// heaviestFirst is a heap with the largest weight first.
type heaviestFirst []weight

func (h heaviestFirst) Len() int { return len(h) }
func (h heaviestFirst) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].weight, h[j].weight), cmp.Compare(h[i].namespace, h[j].namespace)) > 0
}
func (h heaviestFirst) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is for package heap.
func (h *heaviestFirst) Push(w any) { *h = append(*h, w.(weight)) }

// Pop is for package heap.
func (h *heaviestFirst) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	*h = (*h)[:last]
	return w
}

// byNamespace returns the Services that need rows of a map, the largest last, and how many each namespace needs.
func (r *room) byNamespace(of int) (services map[string][]manifest.Name, sums map[string]int) {
	services, sums = map[string][]manifest.Name{}, map[string]int{}
	for n, need := range r.need {
		if _, lacks := r.shares[n]; !lacks && need[of] > 0 {
			services[n.Namespace] = append(services[n.Namespace], n)
			sums[n.Namespace] += need[of]
		}
	}
	for _, all := range services {
		slices.SortFunc(all, func(a, b manifest.Name) int { return cmp.Or(cmp.Compare(r.need[a][of], r.need[b][of]), a.Compare(b)) })
	}
	return services, sums
}

// cut divides the rows of backends, where so many rows are left to be asked for: each namespace has as many as it asks for up to the same number (max-min fairness), and
// so has each of its Services.
func (r *room) cut(left counts) {
	limit := r.limit(backendRows)
	if left[backendRows] <= limit {
		return
	}
	// A part is a row of each frontend at least, and source ranges are not cut.
	limit = max(limit/2, limit-left[serviceRows]-left[rangeRows])
	services, sums := r.byNamespace(backendRows)
	level := fair(slices.Sorted(maps.Values(sums)), limit)
	for namespace, all := range services {
		if sums[namespace] <= level {
			continue
		}
		needs := make([]int, len(all))
		for i, n := range all {
			needs[i] = r.need[n][backendRows]
		}
		of := max(1, coarse(fair(needs, level)))
		for i, n := range all {
			if needs[i] > of {
				r.shares[n] = share{frontends: true, backends: of, asked: needs[i], of: backendRows}
			}
		}
	}
}

// fair returns the number up to which each gets what it needs, so that all get no more than there is. The needs are sorted, and too many.
func fair(needs []int, there int) int {
	for i, need := range needs {
		if part := there / (len(needs) - i); need > part {
			return part
		}
		there -= need
	}
	return math.MaxInt
}

// coarse returns a number that is less by a quarter at most, so that it changes seldom.
func coarse(n int) int {
	unit := 1 << max(0, bits.Len(uint(n))-3)
	return n / unit * unit
}

// leave returns what is left of a service of a Service; nil: nothing. It notes why, if it lacks something.
func (r *room) leave(of manifest.Name, s service.Service, lacking failures) *service.Service {
	part, lacks := r.shares[of]
	if !lacks {
		return &s
	}
	text := "it is not served"
	if part.frontends && part.backends == 0 {
		text = "it has no backends"
	} else if part.frontends {
		text = "it has a part of its backends"
	}
	lacking.add(s.Key(), &RoomError{fmt.Sprintf("%s: the Services of its namespace ask for the most rows of map %q, which has no room for all", text, mapNames[part.of])})
	switch {
	case !part.frontends:
		return nil
	case part.backends == 0:
		s.Backends, s.SourceRanges = nil, nil
	default: // those of this node come first
		s.Backends = s.Backends[:min(len(s.Backends), (len(s.Backends)*part.backends+part.asked-1)/part.asked)]
	}
	return &s
}
