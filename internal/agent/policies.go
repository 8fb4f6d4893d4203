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
		Policies   []policy.Policy
		Pods       []policy.Pod
		Nodes      []policy.Node
		Namespaces []policy.Namespace
		created    string   // in RFC 3339, so that later is greater
		pod        *podUIDs // nil: it is no pod of this node
		notes      []string
	}
	// podUIDs are the UIDs by which a runtime of this node may know a pod.
	podUIDs struct{ uid, mirrors string }
)

// policySet is what the objects of a cluster say of policies.
type policySet struct {
	node    string
	of      map[object]fragment
	labels  map[policy.Digest]map[string]string // of objects
	changed bool
	// version counts the changes, and written is the one that the tables have: 0 if they have none yet, or why not.
	version, written uint64
	failure          error
}

func newPolicySet(node string) *policySet {
	return &policySet{node: node, of: map[object]fragment{}, labels: map[policy.Digest]map[string]string{}, version: 1}
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
		now = fragment{Policies: []policy.Policy{closed}}
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
	if len(p.labels) > len(p.of) { // nobody may have most of them any more
		clear(p.labels)
	}
	s := &set.Snapshot
	s.Share(p.labels)
	f = fragment{s.Policies, s.Pods, s.Nodes, s.Namespaces, id.Created, nil, set.Notes}
	if slices.ContainsFunc(s.Pods, func(pod policy.Pod) bool { return pod.Node == p.node }) {
		f.pod = &podUIDs{id.UID, id.Mirrors}
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

// set returns all, and that nothing has changed since. Of some pods it is not all that policies ask for: of these cut tells.
func (p *policySet) set() (s policies.Set, cut []kube.Warning) {
	p.changed = false
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
		return policies.Set{}, nil // labels matter to nobody
	}
	for _, pod := range s.Trim(p.node) {
		cut = append(cut, kube.Warning{Kind: kube.Pods, Namespace: pod.Namespace, Name: pod.Name, Reason: "TooManyLabels", Text: fmt.Sprintf(
			"policies ask for more than %d of its labels or named ports: they know no others", policy.MostLabels)})
	}
	return s, cut
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

// applyPolicies makes the agent's policies exactly those. While they have more rules than the datapath has room for, or ranges that overlap too
// much for this node, NetworkPolicies of the namespace with the most lose their rules, of which lost tells: the pods that they isolate are then
// reached by what other policies allow alone. Where it is the labels of pods that are too large, those of one namespace are forgotten.
func applyPolicies(ctx context.Context, to Policies, node string, want policies.Set) (full []kube.Warning, lost, err error) {
	want.Policies = slices.Clone(want.Policies)
	for {
		here := want.Snapshot
		here.Node = node
		err := here.CheckOverlaps()
		if err == nil {
			_, err = to.Apply(ctx, service.Agent, want)
		}
		var none *objects.FullError
		var over *policy.OverlapError
		var work *policy.WorkError
		var strip []int
		switch {
		case errors.As(err, &over):
			strip = overlapping(here)
		case errors.As(err, &work):
			strip = heaviestHere(here, work.Most.Namespace)
		case errors.As(err, &none):
			if none.Map != policies.Documents {
				strip = heaviestHere(here, fullest(here, none.Map))
			}
			if len(strip) == 0 {
				strip = heaviest(want.Policies, leastToStrip(none))
			}
		}
		if len(strip) == 0 && none != nil && none.Map == policies.Documents {
			if namespace := labelled(want.Snapshot, leastToStrip(none)); namespace != "" {
				lost = errors.Join(lost, fmt.Errorf("labels of the pods of namespace %s are unknown, and its NetworkPolicies allow nothing: %w", namespace, err))
				full = append(full, forget(&want, namespace, err)...)
				continue
			}
		}
		if len(strip) == 0 {
			return full, lost, err
		}
		first := want.Policies[strip[0]]
		lost = errors.Join(lost, fmt.Errorf("NetworkPolicies of namespace %s have no rules in force, %d with %s: %w", first.Namespace, len(strip), first.Name, err))
		for _, i := range strip {
			p := &want.Policies[i]
			full = append(full, kube.Warning{
				Kind: kube.NetworkPolicies, Namespace: p.Namespace, Name: p.Name, Reason: "NoRoom", Text: "no rules of it are in force: " + err.Error(),
			})
			p.Strip()
		}
	}
}

// labelled returns the namespace whose pods' labels are largest, or none if these are smaller than least, in bytes.
func labelled(s policy.Snapshot, least int) (most string) {
	sizes := s.Labelled()
	for namespace, size := range sizes {
		if size >= least && (most == "" || size > sizes[most] || size == sizes[most] && namespace < most) {
			most = namespace
		}
	}
	return most
}

// forget takes the labels of a namespace's pods, and says so of its NetworkPolicies.
func forget(want *policies.Set, namespace string, why error) (full []kube.Warning) {
	want.Forget(namespace)
	for i := range want.Policies {
		if p := &want.Policies[i]; p.Tier == policy.Namespaced && p.Namespace == namespace {
			full = append(full, kube.Warning{
				Kind: kube.NetworkPolicies, Namespace: namespace, Name: p.Name, Reason: "NoRoom",
				Text: "it isolates all pods of its namespace, and no rules of it are in force: their labels are too large: " + why.Error(),
			})
		}
	}
	return full
}

// overlapping returns, of the NetworkPolicies that select pods of the node, the largest of the namespace whose own ranges overlap most.
func overlapping(s policy.Snapshot) []int {
	of, at := map[string][]policy.Policy{}, map[string][]int{}
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Tier == policy.Namespaced && p.Bulk() > 0 {
			of[p.Namespace], at[p.Namespace] = append(of[p.Namespace], p), append(at[p.Namespace], i)
		}
	}
	most, overlaps := "", 0
	for namespace, all := range of {
		own := policy.Snapshot{Policies: all}
		if n := own.Overlaps(); n > overlaps || n == overlaps && namespace < most {
			most, overlaps = namespace, n
		}
	}
	var out []int
	for _, i := range heaviest(of[most], 1) {
		out = append(out, at[most][i])
	}
	return out
}

// fullest returns the namespace whose NetworkPolicies have the most rows of a map on the node.
func fullest(s policy.Snapshot, table string) string {
	return s.Fullest(func(rows policy.Rows) int {
		switch table {
		case "policy_ports":
			return len(rows.Ports)
		case "verdicts":
			return len(rows.Verdicts)
		case "identities":
			return len(rows.Addresses)
		}
		return len(rows.Numbers)
	}, table == "verdicts").Namespace
}

// heaviestHere returns, of the NetworkPolicies of a namespace that select pods of the node, the largest.
func heaviestHere(s policy.Snapshot, namespace string) (out []int) {
	var of []policy.Policy
	var at []int
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Tier == policy.Namespaced && p.Namespace == namespace {
			of, at = append(of, p), append(at, i)
		}
	}
	for _, i := range heaviest(of, 1) {
		out = append(out, at[i])
	}
	return out
}

// leastToStrip is how many bytes of rules a namespace has at least that has filled a map. Documents are of pods too: what they have no room
// for is no policy's fault unless those of one namespace take a sixteenth.
func leastToStrip(full *objects.FullError) int {
	if full.Map == policies.Documents {
		return int(full.Size) * policies.DocumentPiece / 16
	}
	return 1
}

// heaviest returns the largest NetworkPolicies of the namespace whose rules are largest: those that have half of them. It returns none if
// these are smaller than least, in bytes.
func heaviest(all []policy.Policy, least int) (out []int) {
	sizes, sums := make([]int, len(all)), map[string]int{}
	most := ""
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced {
			sizes[i] = p.Bulk()
			sums[p.Namespace] += sizes[i]
			if sums[p.Namespace] > sums[most] || sums[p.Namespace] == sums[most] && p.Namespace < most { // each time the same
				most = p.Namespace
			}
		}
	}
	if sums[most] < least {
		return nil
	}
	for i := range all {
		if sizes[i] > 0 && all[i].Namespace == most {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
	n := 0
	for sum := 0; 2*sum < sums[most]; n++ {
		sum += sizes[out[n]]
	}
	return out[:n]
}
