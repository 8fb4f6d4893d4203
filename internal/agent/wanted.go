// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// wanted are the services that Services of Kubernetes stand for. A frontend that two have is the one's that had it first.
type wanted struct {
	of      map[manifest.Name]map[service.Key]service.Service
	holder  map[service.Key]manifest.Name
	waiting map[service.Key]map[manifest.Name]bool
}

// changes are what to write: a service, or nil where there is to be none. Later ones replace earlier ones.
type changes map[service.Key]*service.Service

func newWanted() *wanted {
	return &wanted{map[manifest.Name]map[service.Key]service.Service{}, map[service.Key]manifest.Name{}, map[service.Key]map[manifest.Name]bool{}}
}

// set replaces what a Service stands for, adds what that changes, and returns the frontends that another has.
func (w *wanted) set(n manifest.Name, services []service.Service, c changes) (conflicts []service.Key) {
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
		if holder, ok := w.holder[key]; ok && holder != n {
			if w.waiting[key] == nil {
				w.waiting[key] = map[manifest.Name]bool{}
			}
			w.waiting[key][n] = true
			conflicts = append(conflicts, key)
			continue
		}
		was, had := before[key]
		if _, held := w.holder[key]; !held || !had || !was.Equal(s) {
			c[key] = &s
		}
		w.holder[key] = n
	}
	return conflicts
}

// release gives a frontend that a Service has no more to the first one that waits for it.
func (w *wanted) release(key service.Key, n manifest.Name, c changes) {
	if w.holder[key] != n {
		delete(w.waiting[key], n)
		return
	}
	delete(w.holder, key)
	next := slices.SortedFunc(maps.Keys(w.waiting[key]), manifest.Name.Compare)
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
