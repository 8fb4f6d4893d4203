// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// wanted are the services that Services of Kubernetes stand for. A frontend that two have is the first one's, in an order of theirs: so
// it is the same one's after a restart.
type wanted struct {
	compare func(a, b manifest.Name) int
	gives   func(manifest.Name, netip.Addr) bool // a load balancer has the address
	of      map[manifest.Name]ofService
	holder  map[service.Key]manifest.Name
	waiting map[service.Key]map[manifest.Name]bool
}

// ofService are the services of a Service, sorted by key: a map takes twice the memory where there is one.
type ofService []service.Service

func byKey(all []service.Service) ofService {
	all = slices.Clone(all) // without room for more
	slices.SortStableFunc(all, func(a, b service.Service) int { return compareKeys(a.Key(), b.Key()) })
	return slices.CompactFunc(all, func(a, b service.Service) bool { return a.Key() == b.Key() })
}

// get returns the service of a key, if it is there.
func (all ofService) get(key service.Key) (s service.Service, ok bool) {
	i, ok := slices.BinarySearchFunc(all, key, func(s service.Service, key service.Key) int { return compareKeys(s.Key(), key) })
	if ok {
		s = all[i]
	}
	return s, ok
}

// changes are what to write: a service, or nil where there is to be none. Later ones replace earlier ones.
type changes map[service.Key]*service.Service

// conflict is a frontend that a Service has not got, since another has it.
type conflict struct {
	name manifest.Name
	key  service.Key
}

func newWanted(compare func(a, b manifest.Name) int, gives func(manifest.Name, netip.Addr) bool) *wanted {
	return &wanted{compare, gives, map[manifest.Name]ofService{}, map[service.Key]manifest.Name{}, map[service.Key]map[manifest.Name]bool{}}
}

// set replaces what a Service stands for, adds what that changes, and returns who has not got a frontend since then.
func (w *wanted) set(n manifest.Name, services []service.Service, c changes) (conflicts []conflict) {
	before, now := w.of[n], byKey(services)
	w.of[n] = now
	if len(now) == 0 {
		delete(w.of, n)
	}
	for _, s := range before {
		if _, ok := now.get(s.Key()); !ok {
			w.release(s.Key(), n, c)
		}
	}
	for _, s := range now {
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
		if was, had := before.get(key); !held || !had || !was.Equal(s) {
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
	first := holder
	if !held || holder == n {
		first = w.first(key, all) // the holder may come later than before
	} else if w.compareFor(key, n, holder) < 0 {
		first = n
		all[holder] = true
	}
	delete(all, first)
	if first != holder {
		heir, _ := w.of[first].get(key)
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
	if len(w.waiting[key]) == 0 {
		delete(w.waiting, key)
		c[key] = nil
		return
	}
	next := w.first(key, w.waiting[key])
	delete(w.waiting[key], next)
	w.holder[key] = next
	heir, _ := w.of[next].get(key)
	c[key] = &heir
}

// first returns the first of Services that want a frontend, of which there is one.
func (w *wanted) first(key service.Key, all map[manifest.Name]bool) manifest.Name {
	return slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b manifest.Name) int { return w.compareFor(key, a, b) })
}

// compareFor orders Services that want a frontend: whose cluster IP it is comes before those whose load balancer has the address, and these before
// those that have it as an external address, which anybody can write.
func (w *wanted) compareFor(key service.Key, a, b manifest.Name) int {
	external := func(n manifest.Name) int {
		s, _ := w.of[n].get(key)
		switch {
		case !s.External:
			return 0
		case w.gives(n, key.Frontend.Addr()):
			return 1
		}
		return 2
	}
	return cmp.Or(external(a)-external(b), w.compare(a, b))
}

// sort puts the services of the oldest Service first, and of one Service those that are no external address.
func (w *wanted) sort(services []service.Service) {
	external := func(s service.Service) int {
		if s.External {
			return 1
		}
		return 0
	}
	slices.SortFunc(services, func(a, b service.Service) int {
		return cmp.Or(w.compare(w.holder[a.Key()], w.holder[b.Key()]), external(a)-external(b), compareKeys(a.Key(), b.Key()))
	})
}

// services returns all.
func (w *wanted) services() []service.Service {
	all := make([]service.Service, 0, len(w.holder))
	for key, n := range w.holder {
		s, _ := w.of[n].get(key)
		all = append(all, s)
	}
	return all
}

// names returns the Services that stand for something.
func (w *wanted) names() []manifest.Name {
	return slices.Collect(maps.Keys(w.of))
}
