// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"slices"
	"time"

	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// maxCost is what Services that a round looks at cost together (manifest.Snapshot.Cost): some tenths of a second. Others wait for the next one.
const maxCost = 4 << 20

// looked is what a Service stands for. It is found out without the agent's lock: others, and changes, do not wait for it.
type looked struct {
	name     manifest.Name
	snapshot manifest.Snapshot
	set      manifest.Set
	noLocal  map[string]bool // by traffic policy: it is Local, and no backend here serves
}

// take returns the Services to look at in a round: the cheapest, as many as maxCost allows, and one of the others, each in its turn.
func (s *serviceSet) take() (all []looked) {
	if s.all && s.left == nil {
		s.all, s.left = false, map[manifest.Name]bool{}
		for _, n := range slices.Concat(s.wanted.names(), s.cluster.Names()) {
			s.dirty[n], s.left[n] = true, true
		}
	}
	cost := map[manifest.Name]int{}
	for n := range s.dirty {
		snapshot := s.cluster.Snapshot(n)
		all, cost[n] = append(all, looked{name: n, snapshot: snapshot}), snapshot.Cost()
	}
	slices.SortFunc(all, func(a, b looked) int { return cmp.Or(cost[a.name]-cost[b.name], a.name.Compare(b.name)) })
	sum := 0
	if i := slices.IndexFunc(all, func(l looked) bool { sum += cost[l.name]; return sum > maxCost }); i >= 0 {
		next := s.next(all[i:])
		s.last = next.name
		all = append(all[:i], next)
	}
	s.underway = nil
	if len(all) == len(s.dirty) { // a map keeps the room that it has needed once
		s.dirty = map[manifest.Name]bool{}
	}
	for _, l := range all {
		delete(s.dirty, l.name)
		delete(s.left, l.name)
		s.underway = append(s.underway, l.name)
	}
	return all
}

// next returns the first by name after the last one that had its turn.
func (s *serviceSet) next(of []looked) looked {
	had := func(l looked) int {
		if l.name.Compare(s.last) <= 0 {
			return 1
		}
		return 0
	}
	return slices.MinFunc(of, func(a, b looked) int { return cmp.Or(had(a)-had(b), a.name.Compare(b.name)) })
}

// more reports whether Services are left for another round.
func (s *serviceSet) more() bool { return s.all || s.left != nil || len(s.dirty) > 0 }

// look finds out what Services stand for.
func look(all []looked) {
	for i := range all {
		l := &all[i]
		var err error
		if l.set, err = l.snapshot.Set(); err != nil {
			l.set.NotServed = append(l.set.NotServed, err.Error())
		}
		l.snapshot, l.noLocal = manifest.Snapshot{}, withoutLocal(l.set.Services)
	}
}

// merge notes what Services stand for, and returns what to write: all services if all were looked at; and why some are written without their backends,
// or not at all.
func (s *serviceSet) merge(of []looked, w *warnings) (c changes, all []service.Service, lacking failures) {
	c = changes{}
	why := map[manifest.Name][]string{}
	for _, l := range of {
		n, set := l.name, l.set
		said := s.told[n].notes
		delete(s.told, n)
		if len(set.NotServed)+len(set.Notes)+len(set.Remarks) > 0 {
			s.told[n] = told{set.NotServed, slices.Concat(set.Notes, set.Remarks)}
		}
		why[n] = append(why[n], set.NotServed...)
		fresh := slices.DeleteFunc(slices.Clone(set.Notes), func(note string) bool { return slices.Contains(said, note) })
		w.note(kube.Warning{Kind: kube.Services, Namespace: n.Namespace, Name: n.Name}, fresh)
		for policy, of := range s.noLocal {
			if delete(of, n); l.noLocal[policy] {
				of[n] = true
			}
		}
		for _, conflict := range s.wanted.set(n, set.Services, c) {
			why[conflict.name] = append(why[conflict.name], heldBy(conflict.key, s.wanted.holder[conflict.key]))
		}
		s.room.note(n, set.Services)
	}
	w.notServed(why, true)
	s.underway = nil
	lacking = s.leaveOut(c)
	if s.left != nil && len(s.left) == 0 {
		s.left, all = nil, make([]service.Service, 0, len(s.wanted.holder))
		for _, v := range s.wanted.services() {
			if left := s.room.leave(s.wanted.holder[v.Key()], v, lacking); left != nil {
				all = append(all, *left)
			}
		}
	}
	for key, v := range c {
		s.count(key, v)
	}
	return c, all, lacking
}

// leaveOut takes from changes what there is no room for, adds what there is room for again, and returns why.
func (s *serviceSet) leaveOut(c changes) (lacking failures) {
	for _, n := range s.room.divide(time.Now()) {
		for _, v := range s.wanted.of[n] {
			if s.wanted.holder[v.Key()] == n {
				c[v.Key()] = &v
			}
		}
	}
	lacking = failures{}
	for key, v := range c {
		if v != nil {
			c[key] = s.room.leave(s.wanted.holder[key], *v, lacking)
		}
	}
	return lacking
}

// withoutLocal returns the traffic policies that are Local where no backend here serves, though others do.
func withoutLocal(services []service.Service) map[string]bool {
	out := map[string]bool{}
	for _, v := range services {
		name, policy := internalPolicy, v.InternalPolicy
		if v.NodePort || v.External {
			name, policy = externalPolicy, v.ExternalPolicy
		}
		if policy != service.Local {
			continue
		}
		v = v.Sorted()
		if _, local := v.LocalServing(); len(local) == 0 && len(v.Serving()) > 0 {
			out[name] = true
		}
	}
	return out
}
