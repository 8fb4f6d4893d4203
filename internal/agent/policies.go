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
	"strings"

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
		pod     podUIDs
		notes   []string
	}
	// podUIDs are the UIDs by which a runtime of this node may know a pod.
	podUIDs struct{ uid, mirrors string }
)

// policySet is what the objects of a cluster say of policies.
type policySet struct {
	node    string
	of      map[object]fragment
	changed bool
	// version counts the changes, and written is the one that the tables have: 0 if they have none yet, or why not.
	version, written uint64
	failure          error
}

func newPolicySet(node string) *policySet {
	return &policySet{node: node, of: map[object]fragment{}, version: 1}
}

// on notes an event. A policy that cannot be read closes the pods that it selects, whatever it said before: what holds depends on the
// objects alone. Another object that cannot be read leaves what it said before.
func (p *policySet) on(e kube.Event) (notes []string, err error) {
	at := object{e.Kind.Resource, e.Namespace, e.Name}
	if e.Object == nil {
		_, had := p.of[at]
		delete(p.of, at)
		if had {
			p.change()
		}
		return nil, nil
	}
	now, err := p.read(e)
	switch {
	case err != nil && policyKinds[e.Kind.Resource] != "":
		closed, invalid := manifest.Closed(e.Namespace, e.Name, e.Object)
		if invalid != nil {
			return nil, errors.Join(err, invalid)
		}
		now = fragment{Snapshot: policy.Snapshot{Policies: []policy.Policy{closed}}}
		err = fmt.Errorf("%w; until it can be, it denies the pods that it selects all %s", err, directionsOf(closed))
	case err != nil:
		return nil, err
	}
	had, ok := p.of[at]
	if ok && reflect.DeepEqual(had, now) { // as most events of a pod's status
		return nil, err
	}
	p.of[at] = now
	p.change()
	said := func(note string) bool { return slices.Contains(had.notes, note) }
	return slices.DeleteFunc(slices.Clone(now.notes), said), err
}

// read reads an object.
func (p *policySet) read(e kube.Event) (f fragment, err error) {
	set, err := manifest.Read(bytes.NewReader(e.Object))
	if err != nil {
		return f, errors.New(strings.TrimPrefix(err.Error(), "document 1: ")) // there is no other
	}
	id, err := kube.IdentityOf(e.Object)
	if err != nil {
		return f, err
	}
	f = fragment{Snapshot: set.Snapshot, created: id.Created, notes: set.Notes}
	if slices.ContainsFunc(set.Snapshot.Pods, func(pod policy.Pod) bool { return pod.Node == p.node }) {
		f.pod = podUIDs{id.UID, id.Mirrors}
	}
	return f, nil
}

// directionsOf names the directions in which a policy has a say.
func directionsOf(p policy.Policy) string {
	var names []string
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if p.Concerns(d) {
			names = append(names, d.String())
		}
	}
	return strings.Join(names, " and ")
}

func (p *policySet) change() {
	p.changed = true
	p.version++
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
// with the most loses its rules, of which lost tells: the pods that it isolates are then reached by what other policies allow alone.
func applyPolicies(ctx context.Context, to Policies, want policies.Set) (full []kube.Warning, lost, err error) {
	want.Policies = slices.Clone(want.Policies)
	for {
		_, err := to.Apply(ctx, service.Agent, want)
		var none *objects.FullError
		if !errors.As(err, &none) {
			return full, lost, err
		}
		largest := -1
		for i, p := range want.Policies {
			if p.Tier == policy.Namespaced && size(p) > 0 && (largest < 0 || size(p) > size(want.Policies[largest])) {
				largest = i
			}
		}
		if largest < 0 {
			return full, lost, err
		}
		p := &want.Policies[largest]
		lost = errors.Join(lost, fmt.Errorf("%s/%s has no rules in force: %w", p.Namespace, p.Name, err))
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
