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

// wanted are the services that Services of Kubernetes stand for. A frontend that two have is the first one's, in an
// order of theirs: so it is the same one's after a restart.
type wanted struct {
	compare func(a, b manifest.Name) int
	gives   func(manifest.Name, netip.Addr) bool // a load balancer has the address
	of      map[manifest.Name]ofService
	claims  map[service.Key][]manifest.Name // who wants a frontend: the first one has it
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
	i, ok := slices.BinarySearchFunc(all, key,
		func(s service.Service, key service.Key) int { return compareKeys(s.Key(), key) })
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
	return &wanted{compare, gives, map[manifest.Name]ofService{}, map[service.Key][]manifest.Name{}}
}

// holder returns the Service that has a frontend; the zero value if none wants it.
func (w *wanted) holder(key service.Key) (n manifest.Name) {
	if names := w.claims[key]; len(names) > 0 {
		n = names[0]
	}
	return n
}

// set replaces what a Service stands for, adds what that changes, and returns who has not got a frontend since then.
func (w *wanted) set(n manifest.Name, services []service.Service, c changes) (conflicts []conflict) {
	before, now := w.of[n], byKey(services)
	if w.of[n] = now; len(now) == 0 {
		delete(w.of, n)
	}
	for _, s := range byKey(slices.Concat(now, before)) {
		key := s.Key()
		was, had := before.get(key)
		_, wants := now.get(key)
		held := w.holder(key)
		names := slices.DeleteFunc(w.claims[key], func(m manifest.Name) bool { return m == n })
		if wants {
			names = append(names, n)
			slices.SortFunc(names, func(a, b manifest.Name) int { return w.compareFor(key, a, b) })
		}
		if len(names) == 0 {
			delete(w.claims, key)
			c[key] = nil
			continue
		}
		w.claims[key] = names
		first := names[0]
		if first != held || first == n && !(had && was.Equal(s)) {
			heir, _ := w.of[first].get(key)
			c[key] = &heir
		}
		switch {
		case wants && first != n:
			conflicts = append(conflicts, conflict{n, key})
		case wants && held != n && held != manifest.Name{}:
			conflicts = append(conflicts, conflict{held, key})
		}
	}
	return conflicts
}

// compareFor orders Services that want a frontend: whose cluster IP it is comes before those whose load balancer has
// the address, and these before those that have it as an external address, which anybody can write.
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
		return cmp.Or(w.compare(w.holder(a.Key()), w.holder(b.Key())), external(a)-external(b), compareKeys(a.Key(), b.Key()))
	})
}

// services returns all.
func (w *wanted) services() []service.Service {
	all := make([]service.Service, 0, len(w.claims))
	for key, names := range w.claims {
		s, _ := w.of[names[0]].get(key)
		all = append(all, s)
	}
	return all
}

// names returns the Services that stand for something.
func (w *wanted) names() []manifest.Name {
	return slices.Collect(maps.Keys(w.of))
}
