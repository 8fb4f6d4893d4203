// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"mustang/internal/agent/status"
	"mustang/internal/datapath/policies"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
)

type (
	// object is the identity of an object. Pods of other nodes have a resource of their own: a pod that moves is gone from
	// one watch and there in another, in any order.
	object struct{ resource, namespace, name string }
	// fragment holds an object's additions to a snapshot of policies.
	fragment struct {
		Policies   []policy.Policy
		Pods       []policy.Pod
		Nodes      []policy.Node
		Namespaces []policy.Namespace
		created    string // in RFC 3339, so that later is greater
		here       bool   // it is a pod of this node; uids are the UIDs that a runtime may use
		uids       [2]string
	}
)

type policySet struct {
	node    string
	of      map[object]fragment
	count   int                                 // of policies
	labels  map[policy.Digest]map[string]string // of objects
	changed bool
	urgent  bool // other objects than Pods have changed
	// version counts the changes. written is the version in the tables, 0 if none, and failure the reason.
	version, written uint64
	failure          error
	// last are the policies written last: until new ones are in force, verdicts need the labels that last names.
	last []policy.Policy
	// others are the policies of other owners, such as the command line's, which need labels too. endpoints are pods that
	// the cluster may lack.
	others    []policy.Policy
	endpoints []policy.Pod
	// needed is closed once a rule can match pods of other nodes, and elsewhere is set once these have been read.
	needed    chan struct{}
	elsewhere bool
	// peers are the pods that rules can match, by the labels in namespaces. lastPeers are the pods that rules of last can
	// match. owners are the pods of the last set, by address.
	peers      policy.Peers
	lastPeers  policy.Peers
	namespaces map[string]map[string]string
	owners     map[netip.Addr]aged
}

func newPolicySet(node string) *policySet {
	return &policySet{node: node, of: map[object]fragment{}, labels: map[policy.Digest]map[string]string{}, version: 1,
		needed: make(chan struct{})}
}

// on notes an event. A policy that cannot be read closes the pods that it selects, whatever it was before. Another
// object that cannot be read leaves the previous one.
func (p *policySet) on(e kube.Event) (err error) {
	at := p.identity(e)
	had, known := p.of[at]
	var now fragment
	if e.Object != nil {
		if now, err = p.read(e); err != nil && policyKinds[e.Kind.Resource] == "" {
			return err
		}
		if err != nil {
			closed, invalid := manifest.Closed(e.Namespace, e.Name, e.Object)
			if invalid != nil {
				return errors.Join(err, invalid)
			}
			now = fragment{Policies: []policy.Policy{closed}}
			err = fmt.Errorf("%w; until it can be, it isolates the pods that it selects", err)
		}
		if known && reflect.DeepEqual(had, now) { // as most events of a pod's status
			return err
		}
	}
	if p.put(at, now); e.Object == nil {
		delete(p.of, at)
	}
	if p.matters(at, had) || p.matters(at, now) {
		p.change(at)
	}
	return err
}

const elsewhere = "pods elsewhere" // orders them after the node's own

func (p *policySet) identity(e kube.Event) object {
	if e.Kind == kube.PodsElsewhere(p.node) {
		return object{elsewhere, e.Namespace, e.Name}
	}
	return object{e.Kind.Resource, e.Namespace, e.Name}
}

func (o object) isPod() bool { return o.resource == kube.Pods.Resource || o.resource == elsewhere }

// change notes that an object has changed. Pods change all the time; any other change is urgent.
func (p *policySet) change(at object) {
	p.changed = true
	p.urgent = p.urgent || !at.isPod()
	p.version++
}

func (p *policySet) put(at object, f fragment) {
	p.count += len(f.Policies) - len(p.of[at].Policies)
	p.of[at] = f
}

// matters reports whether the tables depend on an object. They depend on few pods elsewhere.
func (p *policySet) matters(at object, f fragment) bool {
	return !at.isPod() || f.here || slices.ContainsFunc(f.Pods, p.named)
}

// named reports whether a rule can match a pod, or the last set has one with an address of it.
func (p *policySet) named(pod policy.Pod) bool {
	namespace := p.namespaces[pod.Namespace]
	if namespace == nil { // it is not read yet
		namespace = map[string]string{policy.NamespaceLabel: pod.Namespace}
	}
	owned := func(a netip.Addr) bool { _, is := p.owners[a]; return is && !pod.HostNetwork }
	return p.peers.Has(&pod, namespace) || p.lastPeers.Has(&pod, namespace) || slices.ContainsFunc(pod.Addresses, owned)
}

func (p *policySet) read(e kube.Event) (f fragment, err error) {
	set, err := manifest.Read(bytes.NewReader(e.Object))
	if err != nil {
		return f, errors.New(strings.TrimPrefix(err.Error(), "document 1: ")) // always the only document
	}
	id, err := kube.MetaOf(e.Object)
	if err != nil {
		return f, err
	}
	if len(p.labels) > len(p.of) { // most of them may be unused by now
		clear(p.labels)
	}
	s := &set.Snapshot
	here := func(pod policy.Pod) bool { return pod.Node == p.node }
	// no rule can match it yet
	s.Pods = slices.DeleteFunc(s.Pods, func(pod policy.Pod) bool { return !here(pod) && len(pod.Addresses) == 0 })
	s.Share(p.labels)
	f = fragment{Policies: s.Policies, Pods: s.Pods, Nodes: s.Nodes, Namespaces: s.Namespaces, created: id.Created}
	if f.here = slices.ContainsFunc(s.Pods, here); f.here {
		f.uids = [2]string{id.UID, id.Mirrors}
	}
	return f, nil
}

// set returns the input of policies, and clears the change flags. It is not ready before pods elsewhere have been read,
// if rules can match some. The policies written last become the previous ones.
func (p *policySet) set() (s policies.Set, ready bool) {
	p.peers, p.owners = policy.Peers{}, map[netip.Addr]aged{}
	if p.count+len(p.others) == 0 {
		p.changed, p.urgent = false, false
		return policies.Set{}, true // no policy reads labels
	}
	known := policy.Snapshot{Policies: slices.Clone(p.last), Pods: slices.Clone(p.endpoints),
		Previous: &policy.Snapshot{Policies: p.others}}
	for _, f := range p.of {
		known.Policies, known.Namespaces = append(known.Policies, f.Policies...), append(known.Namespaces, f.Namespaces...)
		if f.here {
			known.Pods = append(known.Pods, f.Pods...)
		}
	}
	p.peers, p.namespaces = known.Peers(), known.NamespaceLabels()
	if !p.elsewhere && !p.peers.None() {
		select {
		case <-p.needed:
		default:
			close(p.needed)
		}
		return s, false
	}
	p.changed, p.urgent = false, false
	all := p.ordered(p.matters)
	p.own(all)
	for _, at := range all {
		f := p.of[at.object]
		s.Policies = append(s.Policies, f.Policies...)
		s.Namespaces = append(s.Namespaces, f.Namespaces...)
		s.Nodes = append(s.Nodes, f.Nodes...)
		for _, pod := range f.Pods {
			if !pod.HostNetwork {
				another := func(a netip.Addr) bool { return p.owners[a] != at }
				pod.Addresses = slices.DeleteFunc(slices.Clone(pod.Addresses), another)
			}
			s.Pods = append(s.Pods, pod)
		}
	}
	s.Previous = &policy.Snapshot{Policies: slices.Concat(p.last, p.others)}
	s.Trim(p.node)
	return s, true
}

// own finds the youngest pod with each address of the objects' pods: an old pod's object may still be there.
func (p *policySet) own(all []aged) {
	each := func(f fragment, do func(netip.Addr)) {
		for _, pod := range f.Pods {
			for _, a := range pod.Addresses {
				if !pod.HostNetwork {
					do(a)
				}
			}
		}
	}
	for _, at := range all {
		each(p.of[at.object], func(a netip.Addr) { p.owners[a] = at }) // one of them
	}
	for at, f := range p.of {
		each(f, func(a netip.Addr) {
			now := aged{at, f.created}
			if had, ok := p.owners[a]; ok && now.compareAge(had) < 0 {
				p.owners[a] = now
			}
		})
	}
}

type aged struct {
	object
	created string
}

func (a aged) compare(b aged) int {
	return cmp.Or(cmp.Compare(a.resource, b.resource), a.compareAge(b))
}

func (a aged) compareAge(b aged) int {
	return cmp.Or(cmp.Compare(b.created, a.created), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// ordered returns the objects for which a function is true, the youngest of a kind first.
func (p *policySet) ordered(is func(object, fragment) bool) (all []aged) {
	for at, f := range p.of {
		if is(at, f) {
			all = append(all, aged{at, f.created})
		}
	}
	slices.SortFunc(all, aged.compare)
	return all
}

// overQuota is a namespace above its quota: a text for people, and the names of its policies without rules.
type overQuota struct {
	text  string
	names []string
}

var policyKinds = map[string]string{
	kube.NetworkPolicies.Resource: status.NetworkPolicy, kube.ClusterNetworkPolicies.Resource: status.ClusterNetworkPolicy,
}
