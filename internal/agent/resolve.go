// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// resolved is what a Service stands for. It is found out without the agent's lock: others, and changes, do not wait for
// it.
type resolved struct {
	name     manifest.Name
	snapshot manifest.Snapshot
	set      manifest.Set
	noLocal  map[string]bool // by traffic policy: it is Local, and no backend here serves
}

// take returns the Services that have changed, or all of them, for a round to look at.
func (s *serviceSet) take() (of []resolved, all bool) {
	if all = s.all; all {
		for _, n := range slices.Concat(s.wanted.names(), s.cluster.Names()) {
			s.dirty[n] = true
		}
	}
	of = make([]resolved, 0, len(s.dirty))
	for n := range s.dirty {
		of = append(of, resolved{name: n, snapshot: s.cluster.Snapshot(n)})
	}
	slices.SortFunc(of, func(a, b resolved) int { return a.name.Compare(b.name) })
	s.all, s.underway, s.dirty = false, s.dirty, map[manifest.Name]bool{} // a map keeps the room that it has needed once
	return of, all
}

// resolve finds out what Services stand for.
func resolve(all []resolved) {
	for i := range all {
		l := &all[i]
		var err error
		if l.set, err = l.snapshot.Set(); err != nil {
			l.set.NotServed = append(l.set.NotServed, err.Error())
		}
		l.snapshot, l.noLocal = manifest.Snapshot{}, withoutLocal(l.set.Services)
	}
}

// merge notes what Services stand for. It returns what changes in the tables, and why services of Services that it
// looked at, or that have no rows any more, are not programmed.
func (s *serviceSet) merge(of []resolved, w *warnings) (c changes, refused failures) {
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
			why[conflict.name] = append(why[conflict.name], heldBy(conflict.key, s.wanted.holder(conflict.key)))
		}
		s.quota.set(n, set.Services)
	}
	w.notServed(why, true)
	s.underway = nil
	refused = s.applyQuota(c)
	for key, v := range c {
		s.count(key, v)
	}
	return c, refused
}

// applyQuota removes from changes what the quotas of namespaces refuse, and adds what they now allow or refuse.
func (s *serviceSet) applyQuota(c changes) (refused failures) {
	for _, n := range s.quota.update() {
		for _, v := range s.wanted.of[n] {
			if s.wanted.holder(v.Key()) == n {
				c[v.Key()] = &v
			}
		}
	}
	refused = failures{}
	for key, v := range c {
		if err := s.quota.refusal(s.wanted.holder(key)); v != nil && err != nil {
			c[key] = nil
			refused.add(key, err)
		}
	}
	return refused
}

// programmed returns the services of all Services within the quotas of their namespaces, and why the others are
// refused.
func (s *serviceSet) programmed() (all []service.Service, refused failures) {
	all, refused = make([]service.Service, 0, len(s.wanted.claims)), failures{}
	for _, v := range s.wanted.services() {
		if err := s.quota.refusal(s.wanted.holder(v.Key())); err != nil {
			refused.add(v.Key(), err)
		} else {
			all = append(all, v)
		}
	}
	return all, refused
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
