// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"slices"

	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// wanted are the services that Services of Kubernetes stand for. A frontend that two have is the first one's, in an order of theirs: so
// it is the same one's after a restart.
type wanted struct {
	compare func(a, b manifest.Name) int
	of      map[manifest.Name]map[service.Key]service.Service
	holder  map[service.Key]manifest.Name
	waiting map[service.Key]map[manifest.Name]bool
}

// changes are what to write: a service, or nil where there is to be none. Later ones replace earlier ones.
type changes map[service.Key]*service.Service

// conflict is a frontend that a Service has not got, since another has it.
type conflict struct {
	name manifest.Name
	key  service.Key
}

func newWanted(compare func(a, b manifest.Name) int) *wanted {
	return &wanted{compare, map[manifest.Name]map[service.Key]service.Service{}, map[service.Key]manifest.Name{}, map[service.Key]map[manifest.Name]bool{}}
}

// set replaces what a Service stands for, adds what that changes, and returns who has not got a frontend since then.
func (w *wanted) set(n manifest.Name, services []service.Service, c changes) (conflicts []conflict) {
	before := w.of[n]
	now := make(map[service.Key]service.Service, len(services))
	for _, s := range services {
		now[s.Key()] = s
	}
	w.of[n] = now
	if len(now) == 0 {
		delete(w.of, n)
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			w.release(key, n, c)
		}
	}
	for _, s := range services {
		key := s.Key()
		holder, held := w.holder[key]
		if held && holder != n || len(w.waiting[key]) > 0 {
			if loser := w.settle(key, n, c); loser != (manifest.Name{}) {
				conflicts = append(conflicts, conflict{loser, key})
			}
			if w.holder[key] != n || holder != n {
				continue
			}
		}
		if was, had := before[key]; !held || !had || !was.Equal(s) {
			c[key] = &s
		}
		w.holder[key] = n
	}
	return conflicts
}

// settle gives a frontend that a Service wants to the first of all that want it, and returns who has not got it: the Service, or the one
// that had it.
func (w *wanted) settle(key service.Key, n manifest.Name, c changes) (loser manifest.Name) {
	all := w.waiting[key]
	if all == nil {
		all = map[manifest.Name]bool{}
		w.waiting[key] = all
	}
	all[n] = true
	holder, held := w.holder[key]
	if held {
		all[holder] = true
	}
	first := w.inOrder(key, all)[0]
	delete(all, first)
	if first != holder {
		heir := w.of[first][key]
		c[key], w.holder[key] = &heir, first
		loser = holder
	}
	if first != n {
		loser = n
	}
	return loser
}

// release gives a frontend that a Service has no more to the first one that waits for it.
func (w *wanted) release(key service.Key, n manifest.Name, c changes) {
	if w.holder[key] != n {
		delete(w.waiting[key], n)
		return
	}
	delete(w.holder, key)
	next := w.inOrder(key, w.waiting[key])
	if len(next) == 0 {
		delete(w.waiting, key)
		c[key] = nil
		return
	}
	delete(w.waiting[key], next[0])
	w.holder[key] = next[0]
	heir := w.of[next[0]][key]
	c[key] = &heir
}

// inOrder sorts Services that want a frontend: whose cluster IP it is comes before those that have it as an external address, which
// anybody can write.
func (w *wanted) inOrder(key service.Key, all map[manifest.Name]bool) []manifest.Name {
	external := func(n manifest.Name) int {
		if w.of[n][key].External {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b manifest.Name) int { return cmp.Or(external(a)-external(b), w.compare(a, b)) })
}

// sort puts the services first whose Service needs little, and of one Service those that are no external address.
func (w *wanted) sort(services []service.Service) {
	need := map[manifest.Name]int{}
	for _, s := range services {
		need[w.holder[s.Key()]] += 1 + len(s.Backends)
	}
	external := func(s service.Service) int {
		if s.External {
			return 1
		}
		return 0
	}
	slices.SortFunc(services, func(a, b service.Service) int {
		m, n := w.holder[a.Key()], w.holder[b.Key()]
		return cmp.Or(cmp.Compare(need[m], need[n]), m.Compare(n), external(a)-external(b), a.Frontend.Compare(b.Frontend), cmp.Compare(a.Protocol, b.Protocol))
	})
}

// services returns all.
func (w *wanted) services() []service.Service {
	all := make([]service.Service, 0, len(w.holder))
	for key, n := range w.holder {
		all = append(all, w.of[n][key])
	}
	return all
}

// names returns the Services that stand for something.
func (w *wanted) names() []manifest.Name {
	return slices.Collect(maps.Keys(w.of))
}
