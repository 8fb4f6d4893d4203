// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

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
	warned := a.warned()
	rounds, nodes := a.State.Rounds()
	kinds := []string{status.Service, status.NetworkPolicy, status.ClusterNetworkPolicy}
	var joined, pods []status.Object
	var err error
	if a.Nodes != nil {
		if joined, err = a.nodeObjects(nodes.Error); err != nil {
			return r, err
		}
		kinds = append(kinds, status.Node)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.Unread, r.Warnings = a.State.Unread(), slices.Concat(warned, a.services.quota.lines(), a.overQuota, a.State.Degraded())
	r.Synced, r.Sync, r.Nodes = a.synced && !rounds.First.IsZero(), rounds, nodes
	services, err := a.serviceObjects(ctx)
	if err != nil {
		return r, err
	}
	rules, err := a.policyObjects()
	if err != nil {
		return r, err
	}
	if a.Endpoints != nil && a.Config.Services != status.ServicesOff {
		if pods, err = a.podObjects(ctx); err != nil {
			return r, err
		}
		kinds = append(kinds, status.Pod)
	}
	r.Time = time.Now()
	r.Fill(q, kinds, a.addUnread(slices.Concat(services, rules, joined, pods)))
	return r, nil
}

// serviceObjects returns the Services of the cluster, and the agent's services in the tables that no Service wants. The caller
// has the lock.
func (a *Agent) serviceObjects(ctx context.Context) (objects []status.Object, err error) {
	rows, err := a.Services.List(ctx)
	if err != nil {
		return nil, err
	}
	have := make(map[service.Key]service.Service, len(rows))
	for _, s := range rows {
		have[s.Key()] = s
	}
	of := a.services
	pending := !a.synced || of.all
	for _, n := range of.cluster.Names() {
		o := status.Object{Kind: status.Service, Namespace: n.Namespace, Name: n.Name, Why: of.told[n].notServed, Notes: of.told[n].notes}
		if pending || of.dirty[n] || of.underway[n] {
			o.State = status.Waiting
		}
		for _, s := range of.wanted.of[n] {
			key := s.Key()
			e := status.Entry{What: key.String(), Detail: count(len(s.Backends), "backend")}
			row, there := have[key]
			switch holder := of.wanted.holder(key); {
			case holder != n:
				e.Why = heldBy(key, holder)
			case there && row.Owner != service.Agent:
				e.Why = fmt.Sprintf("owner %s has it", row.Owner)
			case there && row.Equal(s):
				e.InTables = true
			case a.failed[key] != "":
				e.Why = a.failed[key]
			case there && o.State != status.Waiting:
				e.Why = "the tables have what it said before"
			case o.State != status.Waiting:
				e.Why = "it is not there"
			}
			o.Entries = append(o.Entries, e)
			if why := a.unanswered[s.HealthCheckPort]; why != "" && !slices.Contains(o.Why, why) {
				o.Why = append(slices.Clip(o.Why), why)
			}
		}
		objects = append(objects, o)
	}
	for key, s := range have {
		if s.Owner == service.Agent && len(of.wanted.claims[key]) == 0 && !pending && len(of.dirty)+len(of.underway) == 0 {
			why := cmp.Or(a.failed[key], "it is in the tables, and no Service wants it")
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

// policyObjects returns the policies of the cluster, and the agent's policies in the tables that the cluster lacks. The caller
// has the lock.
func (a *Agent) policyObjects() (objects []status.Object, err error) {
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
	waiting := !a.synced || a.policies.changed
	remarks := a.policies.remarks()
	for at, f := range a.policies.of {
		kind := policyKinds[at.resource]
		if kind == "" {
			continue
		}
		o := status.Object{Kind: kind, Namespace: at.namespace, Name: at.name, Notes: slices.Concat(f.notes, remarks[at])}
		if waiting {
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
			switch full := a.noRoom[manifest.Name{Namespace: p.Namespace, Name: p.Name}]; {
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
		if !waiting {
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
func (p *policySet) remarks() map[object][]string {
	var all policy.Snapshot
	var of []object
	for at, f := range p.of {
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

// same reports whether two policies are stored alike: a list that is missing and an empty one are.
func same(a, b policy.Policy) bool {
	x, errX := json.Marshal(a, json.Deterministic(true))
	y, errY := json.Marshal(b, json.Deterministic(true))
	return errX == nil && errY == nil && string(x) == string(y)
}

// nodeObjects are the other nodes, and this one with what concerns none of them. said is why the last round failed.
func (a *Agent) nodeObjects(said string) (objects []status.Object, err error) {
	a.mu.Lock()
	synced := a.synced
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

// podObjects are the pods of this node that have an address in the network. The caller has the lock.
func (a *Agent) podObjects(ctx context.Context) (objects []status.Object, err error) {
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
	for _, at := range a.policies.ordered() {
		for _, p := range a.policies.of[at].Pods {
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

// addUnread adds to objects why one of the cluster cannot be read.
func (a *Agent) addUnread(objects []status.Object) []status.Object {
	for at, why := range a.unread {
		kind := kindOf(at.resource)
		text := "it cannot be read: " + why
		if _, had := a.policies.of[at]; had && policyKinds[at.resource] == "" {
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
