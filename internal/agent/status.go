// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/nodenet"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// statusWait is how long a status waits for a round that is being written. Then it tells of the tables as they are.
const statusWait = 5 * time.Second

// Endpoints are the pods of a datapath.
type Endpoints interface {
	List(ctx context.Context) ([]datapath.Endpoint, error)
}

// told is what there is to say of a Service: what it does not get, and what is left out as it should be.
type told struct{ notServed, notes []string }

// view is what an agent wants at a moment.
type view struct {
	synced     bool
	pending    bool // all may change
	services   []manifest.Name
	wanted     map[manifest.Name]ofService
	holder     map[service.Key]manifest.Name
	dirty      map[manifest.Name]bool
	quotas     []string // namespaces above their quota
	told       map[manifest.Name]told
	failed     map[service.Key]string
	unread     map[object]string
	noRoom     map[manifest.Name]string
	unanswered map[uint16]string
	policies   map[object]fragment
	rules      bool // policies may change
}

// Report tells what there is to be, what is in the tables, and why they differ. Errors: those of reading the tables.
func (a *Agent) Report(ctx context.Context, q status.Query) (status.Report, error) {
	r := status.Report{Schema: status.Schema, Config: a.Config}
	select {
	case a.round <- struct{}{}:
		defer func() { <-a.round }()
	case <-time.After(statusWait):
	case <-ctx.Done():
		return r, ctx.Err()
	}
	v := a.view()
	r.Unread, r.Warnings = a.State.Unread(), slices.Concat(a.warned(), v.quotas, a.State.Degraded())
	rounds, nodes := a.State.Rounds()
	r.Synced, r.Sync, r.Nodes = v.synced && !rounds.First.IsZero(), rounds, nodes
	kinds := []string{status.Service, status.NetworkPolicy, status.ClusterNetworkPolicy}
	services, err := a.serviceObjects(ctx, v)
	if err != nil {
		return r, err
	}
	rules, err := a.policyObjects(v)
	if err != nil {
		return r, err
	}
	objects := slices.Concat(services, rules)
	if a.Nodes != nil {
		joined, err := a.nodeObjects(v.synced, nodes.Error)
		if err != nil {
			return r, err
		}
		kinds, objects = append(kinds, status.Node), append(objects, joined...)
	}
	if a.Endpoints != nil && a.Config.Services != status.ServicesOff {
		pods, err := a.podObjects(ctx, v)
		if err != nil {
			return r, err
		}
		kinds, objects = append(kinds, status.Pod), append(objects, pods...)
	}
	r.Time = time.Now()
	r.Fill(q, kinds, unreadObjects(v, objects))
	return r, nil
}

func (a *Agent) view() view {
	a.mu.Lock()
	defer a.mu.Unlock()
	dirty := maps.Clone(a.services.dirty)
	maps.Copy(dirty, a.services.underway)
	return view{
		synced: a.synced, pending: !a.synced || a.services.all, rules: !a.synced || a.policies.changed,
		services: a.services.cluster.Names(), wanted: maps.Clone(a.services.wanted.of), holder: maps.Clone(a.services.wanted.holder),
		dirty: dirty, quotas: slices.Concat(a.services.quota.lines(), a.overQuota), told: maps.Clone(a.services.told), failed: maps.Clone(a.failed),
		unread: maps.Clone(a.unread), noRoom: maps.Clone(a.noRoom), unanswered: maps.Clone(a.unanswered), policies: maps.Clone(a.policies.of),
	}
}

// serviceObjects are the Services of the cluster, and what of the agent's is in the tables besides.
func (a *Agent) serviceObjects(ctx context.Context, v view) (objects []status.Object, err error) {
	rows, err := a.Services.List(ctx)
	if err != nil {
		return nil, err
	}
	have := make(map[service.Key]service.Service, len(rows))
	for _, s := range rows {
		have[s.Key()] = s
	}
	wanted := map[service.Key]bool{}
	for _, n := range v.services {
		o := status.Object{Kind: status.Service, Namespace: n.Namespace, Name: n.Name, Why: v.told[n].notServed, Notes: v.told[n].notes}
		if v.pending || v.dirty[n] {
			o.State = status.Waiting
		}
		for _, s := range v.wanted[n] {
			key := s.Key()
			wanted[key] = true
			e := status.Entry{What: key.String(), Detail: count(len(s.Backends), "backend")}
			row, there := have[key]
			switch holder := v.holder[key]; {
			case holder != n:
				e.Why = heldBy(key, holder)
			case there && row.Owner != service.Agent:
				e.Why = fmt.Sprintf("owner %s has it", row.Owner)
			case there && row.Equal(s):
				e.InTables = true
			case v.failed[key] != "":
				e.Why = v.failed[key]
			case there && o.State != status.Waiting:
				e.Why = "the tables have what it said before"
			case o.State != status.Waiting:
				e.Why = "it is not there"
			}
			o.Entries = append(o.Entries, e)
			if why := v.unanswered[s.HealthCheckPort]; why != "" && !slices.Contains(o.Why, why) {
				o.Why = append(slices.Clip(o.Why), why)
			}
		}
		objects = append(objects, o)
	}
	for key, s := range have {
		if s.Owner == service.Agent && !wanted[key] && !v.pending && len(v.dirty) == 0 {
			why := cmp.Or(v.failed[key], "it is in the tables, and no Service wants it")
			objects = append(objects, status.Object{Kind: status.Service, Name: key.String(), Why: []string{why}})
		}
	}
	return objects, nil
}

// count returns "1 backend", "2 backends".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

func compareKeys(a, b service.Key) int {
	return cmp.Or(a.Frontend.Compare(b.Frontend), cmp.Compare(a.Protocol, b.Protocol))
}

// policyKinds are the kinds of policies by their resources.
var policyKinds = map[string]string{
	kube.NetworkPolicies.Resource: status.NetworkPolicy, kube.ClusterNetworkPolicies.Resource: status.ClusterNetworkPolicy,
}

// kindOf returns the kind of a resource.
func kindOf(resource string) string {
	return cmp.Or(policyKinds[resource], strings.TrimSuffix(resource, "s"))
}

// policyObjects are the policies of the cluster, and what of the agent's is in the tables besides.
func (a *Agent) policyObjects(v view) (objects []status.Object, err error) {
	rows, err := a.Policies.List()
	if err != nil {
		return nil, err
	}
	type name struct {
		tier            policy.Tier
		namespace, name string
	}
	have := map[name]policies.Listed{}
	for _, p := range rows {
		if p.Owner == service.Agent {
			have[name{p.Tier, p.Namespace, p.Name}] = p
		}
	}
	remarks := v.remarks()
	for at, f := range v.policies {
		kind := policyKinds[at.resource]
		if kind == "" {
			continue
		}
		o := status.Object{Kind: kind, Namespace: at.namespace, Name: at.name, Notes: slices.Concat(f.notes, remarks[at])}
		if v.rules {
			o.State = status.Waiting
		}
		for _, p := range f.Policies {
			id := name{p.Tier, p.Namespace, p.Name}
			row, there := have[id]
			delete(have, id)
			e := status.Entry{
				What:   fmt.Sprintf("%s in, %s out", count(len(p.Ingress), "rule"), count(len(p.Egress), "rule")),
				Detail: count(row.Pods, "pod") + " here", InTables: there && same(row.Policy, p),
			}
			switch full := v.noRoom[manifest.Name{Namespace: p.Namespace, Name: p.Name}]; {
			case e.InTables || o.State == status.Waiting:
			case full != "" && p.Tier == policy.Namespaced:
				e.Why = full
			case there:
				e.Why = "the tables have what it said before"
			default:
				e.Why = "it is not there"
			}
			o.Entries = append(o.Entries, e)
		}
		objects = append(objects, o)
	}
	for id := range have {
		if !v.rules {
			o := status.Object{Kind: status.NetworkPolicy, Namespace: id.namespace, Name: id.name, Why: []string{"it is in the tables, and the cluster has none of the name"}}
			if id.tier != policy.Namespaced {
				o.Kind = status.ClusterNetworkPolicy
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// remarks are what authors of policies may not have meant.
func (v view) remarks() map[object][]string {
	var all policy.Snapshot
	var of []object
	for at, f := range v.policies {
		all.Pods, all.Namespaces, all.Policies = append(all.Pods, f.Pods...), append(all.Namespaces, f.Namespaces...), append(all.Policies, f.Policies...)
		for range f.Policies {
			of = append(of, at)
		}
	}
	out := map[object][]string{}
	if len(of) == 0 {
		return out
	}
	for i, texts := range all.Remarks() {
		out[of[i]] = append(out[of[i]], texts...)
	}
	return out
}

// same reports whether two policies are stored alike.
func same(a, b policy.Policy) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// nodeObjects are the other nodes, and this one with what concerns none of them. synced is whether all Node objects are there, and said
// why the last round failed.
func (a *Agent) nodeObjects(synced bool, said string) (objects []status.Object, err error) {
	a.mu.Lock()
	self, others, _, known := a.nodes.split(a.Node)
	absent := a.absent
	a.mu.Unlock()
	of := map[string]*status.Object{}
	for _, n := range append(slices.Clone(others), self) {
		of[n.Name] = &status.Object{Kind: status.Node, Name: n.Name}
	}
	own := of[self.Name]
	if !known && !synced {
		own.Name, own.State = a.Node, status.Waiting
		return []status.Object{*own}, nil
	}
	if !known {
		own.Name, own.Why = a.Node, []string{"its Node object is missing: nothing is joined"}
		return []status.Object{*own}, nil
	}
	if len(self.Ranges) == 0 {
		own.Why = append(own.Why, "its Node object lacks podCIDRs: no pod can be attached")
	}
	if absent != "" {
		own.Why = append(own.Why, absent)
	}
	ways, refused, err := a.Nodes.Inspect(self, others)
	if err != nil {
		return nil, err
	}
	for _, w := range ways {
		e := status.Entry{What: w.Range.String(), Detail: w.Via, InTables: w.There, Why: w.Lacks}
		of[w.Node].Entries = append(of[w.Node].Entries, e)
	}
	for _, err := range refused {
		var left *nodenet.NodeError
		if errors.As(err, &left) && of[left.Node] != nil {
			of[left.Node].Why = append(of[left.Node].Why, left.Text)
		}
	}
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "node ") {
			own.Why = append(own.Why, strings.TrimSpace(line))
		}
	}
	for _, o := range of {
		if a.joining.Load() || len(a.nodes.changed) > 0 {
			o.State = status.Waiting
		}
		objects = append(objects, *o)
	}
	return objects, nil
}

// podObjects are the pods of this node that have an address in the network.
func (a *Agent) podObjects(ctx context.Context, v view) (objects []status.Object, err error) {
	rows, err := a.Endpoints.List(ctx)
	if err != nil {
		return nil, err
	}
	have := map[netip.Addr]bool{}
	for _, e := range rows {
		have[e.IP] = true
	}
	ranges := a.ranges()
	youngest := map[netip.Addr]object{}
	for _, at := range v.ordered() {
		for _, p := range v.policies[at].Pods {
			if p.HostNetwork || p.Node != a.Node || len(p.Addresses) == 0 {
				continue
			}
			o := status.Object{Kind: status.Pod, Namespace: p.Namespace, Name: p.Name, Why: strays(p, ranges)}
			for _, addr := range p.Addresses {
				e := status.Entry{What: addr.String(), InTables: have[addr]}
				if younger, taken := youngest[addr]; taken {
					e.InTables, e.Why = false, fmt.Sprintf("the younger pod %s/%s has it", younger.namespace, younger.name)
				} else if !e.InTables {
					e.Why = "no endpoint has it: the pod was attached before Mustang, or by another network"
				}
				youngest[addr] = cmp.Or(youngest[addr], at)
				o.Entries = append(o.Entries, e)
			}
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// ordered returns the objects that policies depend on, younger ones of a kind first.
func (v view) ordered() []object {
	return (&policySet{of: v.policies}).ordered()
}

// unreadObjects adds to objects why one of the cluster cannot be read.
func unreadObjects(v view, objects []status.Object) []status.Object {
	for at, why := range v.unread {
		kind := kindOf(at.resource)
		text := "it cannot be read: " + why
		if _, had := v.policies[at]; had && policyKinds[at.resource] == "" {
			text += "; what it said before is in force"
		}
		i := slices.IndexFunc(objects, func(o status.Object) bool { return o.Kind == kind && o.Namespace == at.namespace && o.Name == at.name })
		if i < 0 {
			objects, i = append(objects, status.Object{Kind: kind, Namespace: at.namespace, Name: at.name}), len(objects)
		}
		objects[i].Why = append(slices.Clip(objects[i].Why), text)
	}
	return objects
}
