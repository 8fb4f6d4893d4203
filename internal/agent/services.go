// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// serviceSet is what the objects of a cluster say of services.
type serviceSet struct {
	cluster *manifest.Cluster
	zone    string
	// nodePorts are the addresses that have the node ports; nil: all have them.
	nodePorts []netip.Addr
	taken     manifest.Taken         // what external addresses cannot be
	dirty     map[manifest.Name]bool // Services to look at
	all       bool                   // look at all
	underway  map[manifest.Name]bool // those that a round looks at now
	wanted    *wanted
	quota     *quota
	checked   map[service.Key]service.Service // those with a health-check port

	counted  map[service.Key]int // backends of each
	backends int                 // of all

	// noLocal are, by traffic policy, the Services of which that is Local and no backend on this node serves, though
	// others do.
	noLocal map[string]map[manifest.Name]bool
	// told is what there is to say of Services, if there is something.
	told map[manifest.Name]told
	// triggered is when what an EndpointSlice tells of happened: a list brings each of them again.
	triggered map[manifest.Name]time.Time
}

func newServiceSet(node string) *serviceSet {
	cluster := manifest.NewCluster(manifest.Options{Node: node, Localhost: true})
	return &serviceSet{
		triggered: map[manifest.Name]time.Time{},
		cluster:   cluster, dirty: map[manifest.Name]bool{},
		wanted: newWanted(cluster.CompareAge, cluster.Gives), quota: newQuota(rows.Counts{}, 1, cluster.CompareAge),
		checked: map[service.Key]service.Service{}, counted: map[service.Key]int{},
		noLocal: map[string]map[manifest.Name]bool{internalPolicy: {}, externalPolicy: {}},
		told:    map[manifest.Name]told{},
	}
}

// Traffic policies, as metrics name them.
const internalPolicy, externalPolicy = "internal", "external"

// on notes an event.
func (s *serviceSet) on(e kube.Event) (err error) {
	name := manifest.Name{Namespace: e.Namespace, Name: e.Name}
	var concerned []manifest.Name
	switch e.Kind {
	case kube.Services:
		s.dirty[name] = true
		if e.Object == nil {
			concerned = s.cluster.DeleteService(name)
		} else {
			concerned, err = s.cluster.PutService(name, e.Object)
		}
	case kube.EndpointSlices:
		if e.Object == nil {
			concerned = s.cluster.DeleteSlice(name)
		} else {
			concerned, err = s.cluster.PutSlice(name, e.Object)
		}
	}
	for _, c := range concerned {
		s.dirty[c] = true
	}
	return err
}

// trigger returns when what an EndpointSlice tells of happened, if that is new, and after some time.
func (s *serviceSet) trigger(e kube.Event, after time.Time) time.Time {
	name := manifest.Name{Namespace: e.Namespace, Name: e.Name}
	at := kube.TriggeredAt(e.Object)
	if e.Object == nil {
		delete(s.triggered, name)
	}
	if !at.After(after) || at.Equal(s.triggered[name]) {
		return time.Time{}
	}
	s.triggered[name] = at
	return at
}

// setZone notes the zone of this node.
func (s *serviceSet) setZone(zone string) {
	if zone != s.zone {
		s.zone, s.all = zone, true
		s.cluster.SetZone(zone)
	}
}

// setNodePorts notes the addresses of the node that have the node ports, nil where all have them, and reports whether
// that is new.
func (s *serviceSet) setNodePorts(addresses []netip.Addr) (changed bool) {
	if slices.Equal(addresses, s.nodePorts) && (addresses == nil) == (s.nodePorts == nil) {
		return false
	}
	s.nodePorts, s.all = addresses, true
	s.cluster.SetNodePorts(addresses)
	return true
}

// setTaken notes what external addresses cannot be.
func (s *serviceSet) setTaken(taken manifest.Taken) {
	if !taken.Equal(s.taken) {
		s.taken = taken
		for _, n := range s.cluster.SetTaken(taken) {
			s.dirty[n] = true
		}
	}
}

// heldBy says that another Service has a frontend.
func heldBy(key service.Key, holder manifest.Name) string {
	return fmt.Sprintf("%s already has %s", holder, key.Frontend)
}

// count notes the backends of a service, and whether it has a health check.
func (s *serviceSet) count(key service.Key, v *service.Service) {
	s.backends -= s.counted[key]
	delete(s.counted, key)
	delete(s.checked, key)
	if v == nil {
		return
	}
	s.counted[key] = len(v.Backends)
	s.backends += len(v.Backends)
	if v.HealthCheckPort != 0 {
		s.checked[key] = *v
	}
}

// writeLimit bounds how long it takes to find out which of many services cannot be written.
const writeLimit = 20 * time.Second

// write writes what has changed, and returns which of it failed: that does not keep the others from it. Where a map is
// full, what is in force stays.
func (c changes) write(ctx context.Context, to Services, w *wanted) failures {
	var put []service.Service
	var remove []service.Key
	for key, s := range c {
		if s == nil {
			remove = append(remove, key)
		} else {
			put = append(put, *s)
		}
	}
	failed := failures{}
	if len(c) == 0 {
		return failed
	}
	w.sort(put)
	if _, err := to.Change(ctx, service.Agent, put, remove); err == nil {
		return failed
	}
	begin := time.Now()
	var last error
	change := func(put []service.Service, remove []service.Key) error {
		if last != nil && time.Since(begin) > writeLimit {
			return fmt.Errorf("skipped after an earlier error of this round: %w", last)
		}
		_, last = to.Change(ctx, service.Agent, put, remove)
		return last
	}
	// First, since others may need the rows.
	halve(remove, func(keys []service.Key) error { return change(nil, keys) }, failed.add)
	last = nil
	halve(put, func(put []service.Service) error { return change(put, nil) },
		func(s service.Service, err error) { failed.add(s.Key(), err) })
	return failed
}

// halve does all at once, or else each half, and tells for which single ones that fails.
func halve[T any](all []T, do func([]T) error, failed func(T, error)) {
	if len(all) == 0 {
		return
	}
	switch err := do(all); {
	case err == nil:
	case len(all) == 1:
		failed(all[0], err)
	default:
		halve(all[:len(all)/2], do, failed)
		halve(all[len(all)/2:], do, failed)
	}
}

// failures are why services could not be written.
type failures map[service.Key]error

func (f failures) add(key service.Key, err error) { f[key] = err }

// err joins the errors, each text once.
func (f failures) err() error {
	of := map[string]error{}
	for _, err := range f {
		of[err.Error()] = err
	}
	return errors.Join(slices.Collect(maps.Values(of))...)
}

// applyAll makes the agent's services exactly those. One that cannot be stored, since another owner has its frontend,
// does not keep the others from it.
func applyAll(ctx context.Context, to Services, want []service.Service, w *wanted) (failures, error) {
	if _, err := to.Apply(ctx, service.Agent, want); err == nil || ctx.Err() != nil {
		return nil, err
	}
	have, err := to.List(ctx)
	if err != nil {
		return nil, err
	}
	have = slices.DeleteFunc(have, func(s service.Service) bool { return s.Owner != service.Agent })
	c := changes{}
	difference := service.Diff(have, want)
	for _, s := range difference.Delete {
		c[s.Key()] = nil
	}
	for _, s := range difference.Add {
		c[s.Key()] = &s
	}
	for _, u := range difference.Update {
		c[u.Want.Key()] = &u.Want
	}
	return c.write(ctx, to, w), nil
}

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
