// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
)

// object is the identity of an object, and fragment what it says of policies.
type (
	object   struct{ resource, namespace, name string }
	fragment struct {
		policy.Snapshot
		created string // in RFC 3339, so that later is greater
		notes   []string
	}
)

// policySet is what the objects of a cluster say of policies.
type policySet struct {
	of      map[object]fragment
	changed bool
}

func newPolicySet() *policySet { return &policySet{of: map[object]fragment{}} }

// on notes an event. An object that cannot be read leaves what it said before: less policy may allow more.
func (p *policySet) on(e kube.Event) (notes []string, err error) {
	at := object{e.Kind.Resource, e.Namespace, e.Name}
	if e.Object == nil {
		_, had := p.of[at]
		delete(p.of, at)
		p.changed = p.changed || had
		return nil, nil
	}
	set, err := manifest.Read(bytes.NewReader(e.Object))
	if err != nil {
		return nil, err
	}
	created, err := kube.CreatedAt(e.Object)
	if err != nil {
		return nil, err
	}
	now := fragment{set.Snapshot, created, set.Notes}
	if had, ok := p.of[at]; ok && reflect.DeepEqual(had, now) { // as most events of a pod's status
		return nil, nil
	}
	p.of[at], p.changed = now, true
	return set.Notes, nil
}

// set returns all, and that nothing has changed since.
func (p *policySet) set() policies.Set {
	p.changed = false
	var s policies.Set
	taken := map[netip.Addr]bool{}
	for _, at := range p.ordered() {
		f := p.of[at]
		s.Policies = append(s.Policies, f.Policies...)
		s.Namespaces = append(s.Namespaces, f.Namespaces...)
		s.Nodes = append(s.Nodes, f.Nodes...)
		for _, pod := range f.Pods {
			if !pod.HostNetwork {
				pod.Addresses = untaken(pod.Addresses, taken)
			}
			s.Pods = append(s.Pods, pod)
		}
	}
	if len(s.Policies) == 0 {
		return policies.Set{} // labels matter to nobody
	}
	return s
}

// ordered returns the objects by kind, the younger ones of a kind first.
func (p *policySet) ordered() []object {
	return slices.SortedFunc(maps.Keys(p.of), func(a, b object) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(p.of[b].created, p.of[a].created),
			cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
}

// untaken returns the addresses that no younger pod has, and takes them: an address is free before its last pod's object is gone.
func untaken(addresses []netip.Addr, taken map[netip.Addr]bool) (out []netip.Addr) {
	for _, a := range addresses {
		if !taken[a] {
			taken[a] = true
			out = append(out, a)
		}
	}
	return out
}

// applyPolicies makes the agent's policies exactly those. While they have more rules than the datapath has room for, the NetworkPolicy
// with the most loses its rules: the pods that it isolates are then reached by what other policies allow alone.
func applyPolicies(ctx context.Context, to Policies, want policies.Set) (full []kube.Warning, err error) {
	want.Policies = slices.Clone(want.Policies)
	var errs []error
	for {
		_, err := to.Apply(ctx, service.Agent, want)
		var none *objects.FullError
		if !errors.As(err, &none) {
			return full, errors.Join(append(errs, err)...)
		}
		largest := -1
		for i, p := range want.Policies {
			if p.Tier == policy.Namespaced && size(p) > 0 && (largest < 0 || size(p) > size(want.Policies[largest])) {
				largest = i
			}
		}
		if largest < 0 {
			return full, errors.Join(append(errs, err)...)
		}
		p := &want.Policies[largest]
		errs = append(errs, fmt.Errorf("%s/%s has no rules in force: %w", p.Namespace, p.Name, err))
		full = append(full, kube.Warning{
			Kind: kube.NetworkPolicies, Namespace: p.Namespace, Name: p.Name, Reason: "NoRoom", Text: "no rules of it are in force: " + err.Error(),
		})
		p.Ingress, p.Egress = nil, nil
	}
}

// size is the number of a policy's peers.
func size(p policy.Policy) (n int) {
	for _, rules := range [][]policy.Rule{p.Ingress, p.Egress} {
		for _, r := range rules {
			n += 1 + len(r.Peers)
		}
	}
	return n
}
