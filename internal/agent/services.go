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

	// triggered is when what an EndpointSlice tells of happened: a list brings each of them again.
	triggered map[manifest.Name]time.Time
	// told is what there is to say of Services, if there is something.
	told map[manifest.Name]told
}

func newServiceSet(node string) *serviceSet {
	cluster := manifest.NewCluster(manifest.Options{Node: node, Localhost: true})
	return &serviceSet{
		cluster: cluster, dirty: map[manifest.Name]bool{},
		wanted: newWanted(cluster.CompareAge, cluster.Gives), quota: newQuota(rows.Counts{}, 1, cluster.CompareAge),
		checked: map[service.Key]service.Service{}, counted: map[service.Key]int{},
		noLocal:   map[string]map[manifest.Name]bool{internalPolicy: {}, externalPolicy: {}},
		triggered: map[manifest.Name]time.Time{}, told: map[manifest.Name]told{},
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
			return fmt.Errorf("not tried in this round, of which an error was: %w", last)
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
