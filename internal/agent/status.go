// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/nodenet"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type tables struct {
	services  map[service.Key]service.Service
	policies  map[string]policies.Listed // by kind and name
	endpoints map[netip.Addr]bool
	ways      []nodenet.Way // to other nodes
	refused   []error       // what of other nodes is left out
	moving    bool          // a round has written meanwhile
}

func (a *Agent) readTables(ctx context.Context) (t tables, err error) {
	services, err := a.Services.List(ctx)
	listed, listErr := a.Policies.List()
	var pods []datapath.Endpoint
	var podsErr error
	if a.hasPods() {
		pods, podsErr = a.Endpoints.List(ctx)
	}
	if err := cmp.Or(err, listErr, podsErr); err != nil {
		return t, err
	}
	t = tables{services: map[service.Key]service.Service{}, policies: map[string]policies.Listed{},
		endpoints: map[netip.Addr]bool{}}
	for _, s := range services {
		t.services[s.Key()] = s
	}
	for _, p := range listed {
		if p.Owner == service.Agent {
			t.policies[p.Policy.String()] = p
		}
	}
	for _, e := range pods {
		t.endpoints[e.IP] = true
	}
	a.mu.Lock()
	self, others, _, known := a.nodes.split(a.Node)
	a.mu.Unlock()
	if a.Nodes != nil && known {
		t.ways, t.refused, err = a.Nodes.Inspect(self, others)
	}
	return t, err
}

func (a *Agent) hasPods() bool { return a.Endpoints != nil && a.Config.Services != status.ServicesOff }

// Report compares the desired state with the tables. It fails if the tables cannot be read.
func (a *Agent) Report(ctx context.Context, q status.Query) (status.Report, error) {
	before, warned := a.State.Report(), a.Warnings()
	have, err := a.readTables(ctx)
	if err != nil {
		return status.Report{}, err
	}
	r := a.State.Report()
	have.moving = r.Sync.Number != before.Sync.Number || !r.Sync.Running.IsZero() || !before.Sync.Running.IsZero()
	kinds := []string{status.Service, status.NetworkPolicy, status.ClusterNetworkPolicy}
	if a.Nodes != nil {
		kinds = append(kinds, status.Node)
	}
	if a.hasPods() {
		kinds = append(kinds, status.Pod)
	}
	a.mu.Lock()
	objects := a.objects(have, r.Nodes.Error)
	all, of := a.policies.snapshot()
	if !a.policies.elsewhere { // a policy may select pods that are not read
		of = nil
	}
	r.Config, r.Synced = a.Config, a.synced && !r.Sync.First.IsZero()
	warned = append(slices.Clip(warned), a.services.overQuota()...)
	for _, namespace := range slices.Sorted(maps.Keys(a.over)) {
		warned = append(warned, a.over[namespace].text)
	}
	r.Warnings, r.Paths = append(warned, r.Warnings...), a.paths.list()
	a.mu.Unlock()
	notes := map[string][]string{}
	if len(of) > 0 {
		for i, texts := range all.Remarks() { // without the lock
			notes[of[i]] = append(notes[of[i]], texts...)
		}
	}
	for i, o := range objects {
		objects[i].Notes = slices.Concat(o.Notes, notes[o.String()])
	}
	r.Fill(q, kinds, objects)
	return r, nil
}

// refused counts by kind the objects that are not completely in force, without reading the tables.
func (a *Agent) refused() []status.Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	var r status.Report
	r.Fill(status.Query{Wrong: true}, []string{status.Service, status.NetworkPolicy, status.ClusterNetworkPolicy,
		status.Node, status.Pod}, a.objects(tables{}, ""))
	return r.Kinds
}

// objects returns the objects of the cluster, compared with tables unless these are the zero value. failed is why nodes
// could not be joined. The caller has the lock.
func (a *Agent) objects(have tables, failed string) []status.Object {
	objects := slices.Concat(a.serviceObjects(have), a.policyObjects(have))
	if a.Nodes != nil || a.absent != "" {
		objects = append(objects, a.nodeObjects(have, failed)...)
	}
	if a.hasPods() || have.services == nil {
		objects = append(objects, a.podObjects(have)...)
	}
	for at, why := range a.unread {
		text := "it cannot be read: " + why
		if _, had := a.policies.of[at]; had && policyKinds[at.resource] == "" {
			text += "; its previous version is in force"
		}
		kind := cmp.Or(policyKinds[at.resource], strings.TrimSuffix(at.resource, "s"))
		named := status.Object{Kind: kind, Namespace: at.namespace, Name: at.name}
		i := slices.IndexFunc(objects, func(o status.Object) bool { return o.String() == named.String() })
		if i < 0 {
			objects, i = append(objects, named), len(objects)
		}
		objects[i].Why = append(slices.Clip(objects[i].Why), text)
	}
	return objects
}

// compare adds an entry to an object: whether it is in the tables as desired, or, without another explanation, why not.
func (t tables) compare(o *status.Object, e status.Entry, there, same bool) {
	switch {
	case t.services == nil || e.Why != "":
	case same:
		e.InTables = true
	case t.moving:
		o.State = status.Waiting
	case o.State == status.Waiting:
	case there:
		e.Why = "its previous version is installed"
	default:
		e.Why = "not installed"
	}
	o.Entries = append(o.Entries, e)
}

func (a *Agent) serviceObjects(have tables) (objects []status.Object) {
	of := a.services
	for _, n := range of.cluster.Names() {
		r := of.record(n)
		o := status.Object{Kind: status.Service, Namespace: n.Namespace, Name: n.Name, Why: r.notServed, Notes: r.notes}
		if !a.synced || of.all || of.dirty[n] || of.underway[n] {
			o.State = status.Waiting
		}
		for _, s := range r.desired {
			key := s.Key()
			e := status.Entry{What: key.String(), Detail: count(len(s.Backends), "backend")}
			row, there := have.services[key]
			same := there && row.Owner == service.Agent && row.Equal(s)
			switch holder := of.holder(key); {
			case holder != n:
				e.Why = heldBy(key, holder)
			case there && row.Owner != service.Agent:
				e.Why = fmt.Sprintf("owner %s has it", row.Owner)
			case !same:
				e.Why = a.failed[key]
			}
			have.compare(&o, e, there, same)
			if why := a.unanswered[s.HealthCheckPort]; why != "" && !slices.Contains(o.Why, why) {
				o.Why = append(slices.Clip(o.Why), why)
			}
		}
		objects = append(objects, o)
	}
	return objects
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

func (a *Agent) policyObjects(have tables) (objects []status.Object) {
	waiting := !a.synced || a.policies.changed
	for at, f := range a.policies.of {
		kind := policyKinds[at.resource]
		if kind == "" {
			continue
		}
		o := status.Object{Kind: kind, Namespace: at.namespace, Name: at.name}
		if waiting {
			o.State = status.Waiting
		}
		for _, p := range f.Policies {
			row, there := have.policies[p.String()]
			e := status.Entry{
				What:   fmt.Sprintf("%s in, %s out", count(len(p.Ingress), "rule"), count(len(p.Egress), "rule")),
				Detail: count(row.Pods, "pod") + " here",
			}
			same := there && same(row.Policy, p)
			if !same && p.Tier == policy.Namespaced && !waiting {
				e.Why = a.notInForce(p.Namespace, p.Name)
			}
			have.compare(&o, e, there, same)
		}
		objects = append(objects, o)
	}
	return objects
}

func (p *policySet) snapshot() (all policy.Snapshot, of []string) {
	for at, f := range p.of {
		all.Pods, all.Namespaces = append(all.Pods, f.Pods...), append(all.Namespaces, f.Namespaces...)
		all.Policies = append(all.Policies, f.Policies...)
		for range f.Policies {
			of = append(of, status.Object{Kind: policyKinds[at.resource], Namespace: at.namespace, Name: at.name}.String())
		}
	}
	return all, of
}

func same(a, b policy.Policy) bool { return a.Digest() == b.Digest() }

// nodeObjects returns this node, with entries only about itself, and the others. failed is why the last round failed.
func (a *Agent) nodeObjects(have tables, failed string) (objects []status.Object) {
	self, others, _, known := a.nodes.split(a.Node)
	own := status.Object{Kind: status.Node, Name: a.Node}
	switch {
	case !known:
		if own.Why = []string{"its Node object is missing: nothing is joined"}; !a.synced {
			own.Why, own.State = nil, status.Waiting
		}
		return []status.Object{own}
	case len(self.Ranges) == 0 && a.Nodes != nil:
		own.Why = append(own.Why, "its Node object lacks podCIDRs: no pod can be attached")
	}
	if a.absent != "" {
		own.Why = append(own.Why, a.absent)
	}
	for line := range strings.Lines(failed) {
		if !strings.HasPrefix(line, "node ") {
			own.Why = append(own.Why, strings.TrimSpace(line))
		}
	}
	objects = append(objects, own)
	for _, n := range others {
		if have.services == nil {
			break
		}
		o := status.Object{Kind: status.Node, Name: n.Name}
		for _, w := range have.ways {
			if w.Node == n.Name {
				o.Entries = append(o.Entries, status.Entry{What: w.Range.String(), Detail: w.Via, InTables: w.There, Why: w.Lacks})
			}
		}
		for _, err := range have.refused {
			if left := (*nodenet.NodeError)(nil); errors.As(err, &left) && left.Node == n.Name {
				o.Why = append(o.Why, left.Text)
			}
		}
		objects = append(objects, o)
	}
	for i := range objects {
		if have.services != nil && (a.joining.Load() || len(a.nodes.changed) > 0) {
			objects[i].State = status.Waiting
		}
	}
	return objects
}

func (a *Agent) podObjects(have tables) (objects []status.Object) {
	youngest := map[netip.Addr]object{}
	for _, at := range a.policies.ordered(func(_ object, f fragment) bool { return f.here }) {
		for _, p := range a.policies.of[at.object].Pods {
			if p.HostNetwork || len(p.Addresses) == 0 {
				continue
			}
			o := status.Object{Kind: status.Pod, Namespace: p.Namespace, Name: p.Name}
			for _, addr := range p.Addresses {
				e := status.Entry{What: addr.String(), InTables: have.endpoints[addr]}
				if younger, taken := youngest[addr]; taken {
					e.InTables, e.Why = false, fmt.Sprintf("the younger pod %s/%s has it", younger.namespace, younger.name)
				} else if !e.InTables && have.services != nil {
					e.Why = "no endpoint has it: the pod was attached before Mustang, or by another network"
				}
				youngest[addr] = cmp.Or(youngest[addr], at.object)
				o.Entries = append(o.Entries, e)
			}
			objects = append(objects, o)
		}
	}
	return objects
}
