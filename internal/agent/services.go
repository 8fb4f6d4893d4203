// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

type serviceSet struct {
	cluster   *manifest.Cluster
	zone      string
	nodePorts []netip.Addr // that have the node ports; nil: all of the node's
	taken     manifest.Taken
	dirty     map[manifest.Name]bool // Services to look at
	all       bool                   // look at all
	underway  map[manifest.Name]bool // Services that a round looks at now

	records   map[manifest.Name]*record
	claims    map[service.Key][]manifest.Name // the Services that claim a frontend; the first one gets it
	checked   map[service.Key]service.Service // programmed services with a health-check port
	limit     counts                          // rows of a namespace; 0: none
	usage     map[string]*usage               // by namespace
	triggered map[manifest.Name]time.Time     // the last trigger time of each EndpointSlice: a list repeats it
}

type record struct {
	created string            // in RFC 3339, so that later is greater
	desired []service.Service // sorted by key, each once
	rows    counts
	noLocal [2]bool // its internal or external policy is Local, and no backend here serves, though others do

	notServed, notes []string
}

// newServiceSet returns a set that limits a namespace to 1/parts of each map. A room of 0 is unlimited.
func newServiceSet(node string, room rows.Counts, parts int) *serviceSet {
	limit := countsOf(room)
	for i, n := range limit {
		limit[i] = min(n, max(1, n/parts))
	}
	return &serviceSet{
		cluster: manifest.NewCluster(manifest.Options{Node: node, Localhost: true}), dirty: map[manifest.Name]bool{},
		records: map[manifest.Name]*record{}, claims: map[service.Key][]manifest.Name{},
		checked: map[service.Key]service.Service{}, limit: limit, usage: map[string]*usage{},
		triggered: map[manifest.Name]time.Time{},
	}
}

func (s *serviceSet) on(e kube.Event) (err error) {
	name := manifest.Name{Namespace: e.Namespace, Name: e.Name}
	var concerned []manifest.Name
	switch {
	case e.Kind == kube.Services && e.Object == nil:
		concerned = append(s.cluster.DeleteService(name), name)
	case e.Kind == kube.Services:
		concerned, err = s.cluster.PutService(name, e.Object)
		concerned = append(concerned, name)
	case e.Kind == kube.EndpointSlices && e.Object == nil:
		concerned = s.cluster.DeleteSlice(name)
	case e.Kind == kube.EndpointSlices:
		concerned, err = s.cluster.PutSlice(name, e.Object)
	}
	s.setDirty(concerned)
	return err
}

func (s *serviceSet) setDirty(names []manifest.Name) {
	for _, n := range names {
		s.dirty[n] = true
	}
}

func (s *serviceSet) trigger(e kube.Event, after time.Time) time.Time {
	name := manifest.Name{Namespace: e.Namespace, Name: e.Name}
	if e.Object == nil {
		delete(s.triggered, name)
		return time.Time{}
	}
	meta, _ := kube.MetaOf(e.Object) // zero if it cannot be read
	at := meta.Triggered
	if !at.After(after) || at.Equal(s.triggered[name]) {
		return time.Time{}
	}
	s.triggered[name] = at
	return at
}

// setNodePorts stores the node's addresses with node ports, nil for all, and reports whether they changed.
func (s *serviceSet) setNodePorts(addresses []netip.Addr) (changed bool) {
	if slices.Equal(addresses, s.nodePorts) && (addresses == nil) == (s.nodePorts == nil) {
		return false
	}
	s.nodePorts, s.all = addresses, true
	s.cluster.SetNodePorts(addresses)
	return true
}

func (s *serviceSet) setTaken(taken manifest.Taken) {
	if !reflect.DeepEqual(taken, s.taken) {
		s.taken = taken
		s.setDirty(s.cluster.SetTaken(taken))
	}
}

type resolved struct {
	name     manifest.Name
	snapshot manifest.Snapshot
	record   *record
}

func (s *serviceSet) take() (of []resolved, all bool) {
	if all = s.all; all {
		s.setDirty(slices.AppendSeq(s.cluster.Names(), maps.Keys(s.records)))
	}
	of = make([]resolved, 0, len(s.dirty))
	for n := range s.dirty {
		of = append(of, resolved{name: n, snapshot: s.cluster.Snapshot(n)})
	}
	slices.SortFunc(of, func(a, b resolved) int { return a.name.Compare(b.name) })
	s.all, s.underway, s.dirty = false, s.dirty, map[manifest.Name]bool{}
	return of, all
}

// resolve computes the datapath services of Services. It runs without the agent's lock, so that events do not wait.
func resolve(all []resolved) {
	for i := range all {
		l := &all[i]
		set, err := l.snapshot.Set()
		if err != nil {
			set.NotServed = append(set.NotServed, err.Error())
		}
		l.record, l.snapshot = newRecord(l.snapshot.Created(), set), manifest.Snapshot{}
	}
}

// merge makes the records of Services. It returns the changes of the tables, and the services refused for a quota.
func (s *serviceSet) merge(of []resolved, w *warnings) (changes, failures) {
	c, why, namespaces := changes{}, map[manifest.Name][]string{}, map[string]bool{}
	for _, l := range of {
		had, now := s.record(l.name), l.record
		why[l.name] = append(why[l.name], now.notServed...)
		s.replace(l.name, now, c, why)
		namespace := l.name.Namespace
		if s.usage[namespace] == nil {
			s.usage[namespace] = &usage{}
		}
		s.usage[namespace].rows.add(had.rows, -1)
		s.usage[namespace].rows.add(now.rows, 1)
		namespaces[namespace] = true
	}
	w.notServed(why, true, s)
	s.underway = nil
	for namespace := range namespaces {
		s.applyQuota(namespace, c)
	}
	refused := failures{}
	for key, v := range c {
		if err := s.refusal(s.holder(key)); v != nil && err != nil {
			c[key], v, refused[key] = nil, nil, err
		}
		if delete(s.checked, key); v != nil && v.HealthCheckPort != 0 {
			s.checked[key] = *v
		}
	}
	return c, refused
}

func newRecord(created string, set manifest.Set) *record {
	r := &record{created: created, desired: slices.Clone(set.Services), // without spare capacity
		notServed: set.NotServed, notes: slices.Concat(set.Notes, set.Remarks)}
	r.desired = sorted(r.desired)
	for _, v := range r.desired {
		r.rows.add(countsOf(rows.Count(v)), 1)
		at, policy := 0, v.InternalPolicy
		if v.NodePort || v.External {
			at, policy = 1, v.ExternalPolicy
		}
		if policy == service.Local {
			v = v.Sorted()
			_, local := v.LocalServing()
			r.noLocal[at] = r.noLocal[at] || len(local) == 0 && len(v.Serving()) > 0
		}
	}
	return r
}

func sorted(all []service.Service) []service.Service {
	slices.SortStableFunc(all, func(a, b service.Service) int { return compareKeys(a.Key(), b.Key()) })
	return slices.CompactFunc(all, func(a, b service.Service) bool { return a.Key() == b.Key() })
}

func compareKeys(a, b service.Key) int {
	return cmp.Or(a.Frontend.Compare(b.Frontend), cmp.Compare(a.Protocol, b.Protocol))
}

func (s *serviceSet) record(n manifest.Name) *record {
	if r := s.records[n]; r != nil {
		return r
	}
	return &record{}
}

func (r *record) get(key service.Key) *service.Service {
	i, ok := slices.BinarySearchFunc(r.desired, key,
		func(s service.Service, key service.Key) int { return compareKeys(s.Key(), key) })
	if !ok {
		return nil
	}
	return &r.desired[i]
}

func (s *serviceSet) holder(key service.Key) (n manifest.Name) {
	if names := s.claims[key]; len(names) > 0 {
		n = names[0]
	}
	return n
}

// replace replaces a record. It adds the changes to c, and to why the reason of each Service without its frontend.
func (s *serviceSet) replace(n manifest.Name, now *record, c changes, why map[manifest.Name][]string) {
	had := s.record(n)
	if s.records[n] = now; len(now.desired)+len(now.notServed)+len(now.notes) == 0 {
		delete(s.records, n)
	}
	for _, v := range sorted(slices.Concat(now.desired, had.desired)) {
		key := v.Key()
		before, wants := s.holder(key), now.get(key) != nil
		names := slices.DeleteFunc(s.claims[key], func(m manifest.Name) bool { return m == n })
		if wants {
			names = append(names, n)
			slices.SortFunc(names, func(a, b manifest.Name) int { return s.compareFor(key, a, b) })
		}
		if s.claims[key] = names; len(names) == 0 {
			delete(s.claims, key)
			c[key] = nil
			continue
		}
		was, first := had.get(key), names[0]
		if first != before || first == n && !(was != nil && was.Equal(v)) {
			c[key] = s.record(first).get(key)
		}
		loser := n
		if first == n {
			loser = before
		}
		if wants && loser != first && loser != (manifest.Name{}) {
			why[loser] = append(why[loser], heldBy(key, first))
		}
	}
}

func heldBy(key service.Key, holder manifest.Name) string {
	return fmt.Sprintf("%s already has %s", holder, key.Frontend)
}

// compareFor orders Services that claim a frontend: a cluster IP comes first, then a load balancer's address, then an
// external IP, which any user can set. Of two alike the older Service comes first, so a restart changes nothing.
func (s *serviceSet) compareFor(key service.Key, a, b manifest.Name) int {
	class := func(n manifest.Name) int {
		switch v := s.record(n).get(key); {
		case v == nil || !v.External:
			return 0
		case s.cluster.Gives(n, key.Frontend.Addr()):
			return 1
		}
		return 2
	}
	return cmp.Or(class(a)-class(b), s.compareAge(a, b))
}

func (s *serviceSet) compareAge(a, b manifest.Name) int {
	return cmp.Or(cmp.Compare(s.record(a).created, s.record(b).created), a.Compare(b))
}

// programmed returns the services within the quotas of their namespaces, and why the others are refused.
func (s *serviceSet) programmed() (all []service.Service, refused failures) {
	all, refused = make([]service.Service, 0, len(s.claims)), failures{}
	for key, names := range s.claims {
		if err := s.refusal(names[0]); err != nil {
			refused[key] = err
		} else {
			all = append(all, *s.record(names[0]).get(key))
		}
	}
	return all, refused
}

func (s *serviceSet) installed() (n status.Installed) {
	all, _ := s.programmed()
	n.Services = len(all)
	for _, v := range all {
		n.Backends += len(v.Backends)
	}
	for _, r := range s.records {
		if r.noLocal[0] {
			n.NoLocalInternal++
		}
		if r.noLocal[1] {
			n.NoLocalExternal++
		}
	}
	return n
}

type changes map[service.Key]*service.Service

type failures map[service.Key]error
