// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/go-json-experiment/json"

	"mustang/internal/policy"
)

// Admit stores what policies may know of an endpoint, unless pod is nil, and calls join to write its rows, with the
// rule sets of its addresses: no packet finds the endpoint without them. It reports whether policies know something
// else of the endpoint than before. The caller has the lock of the rows.
func (p Policies) Admit(id uint32, addresses []netip.Addr, pod *policy.Pod,
	join func(map[netip.Addr]policy.Sets) error) (changed bool, err error) {
	docs, err := p.read()
	if err != nil {
		return false, err
	}
	now := docs.now
	if pod != nil && !same(docs.now.pods[id], *pod) {
		if err := p.mark(docs); err != nil {
			return false, err
		}
		if err := p.putPod(id, *pod); err != nil {
			return false, err
		}
		now.pods = maps.Clone(now.pods)
		now.pods[id] = *pod
		changed = true
	}
	if docs.idle() {
		err := join(nil)
		if err == nil && (changed || docs.pending) {
			err = p.finish()
		}
		return changed, err
	}
	now.joining = map[netip.Addr]uint32{}
	for _, a := range addresses {
		now.joining[a.Unmap()] = id
	}
	return changed, p.refresh(docs, now, join)
}

// Known returns what policies know of the pod of an endpoint: what Admit has stored, or else what a document says of
// the pod that has one of the addresses. The caller has the lock of the rows.
func (p Policies) Known(id uint32, addresses []netip.Addr) (policy.Pod, error) {
	docs, err := p.read()
	if pod, ok := docs.now.pods[id]; ok || err != nil {
		return pod, err
	}
	for _, owner := range docs.now.trusted() {
		for _, pod := range docs.now.sets[owner].Pods {
			here := func(a netip.Addr) bool { return slices.Contains(addresses, a.Unmap()) }
			if !pod.HostNetwork && slices.ContainsFunc(pod.Addresses, here) {
				pod.Addresses, pod.Node = nil, ""
				return pod, nil
			}
		}
	}
	return policy.Pod{}, nil
}

// Named returns the endpoints that Admit knows by a name. The caller has the lock of the links.
func (p Policies) Named(namespace, name string) (ids []uint32, err error) {
	docs, err := p.read()
	if errors.As(err, new(*LostError)) {
		err = nil
	}
	for id, pod := range docs.now.pods {
		if pod.Namespace == namespace && pod.Name == name {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Forget calls remove to delete the rows of endpoints, and forgets what it knows of them. The caller has the lock of
// the rows.
func (p Policies) Forget(ids []uint32, remove func() error) error {
	docs, err := p.read()
	if errors.As(err, new(*LostError)) { // a pod that goes needs no policies
		return remove()
	}
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(ids, func(id uint32) bool { _, ok := docs.now.pods[id]; return ok })
	if docs.idle() && !known {
		return remove()
	}
	if err := p.mark(docs); err != nil {
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	if docs.idle() {
		return p.finish()
	}
	return p.refresh(docs, docs.now, nil)
}

// left returns what endpoints are to be known by whose Pod an owner no longer names: their processes may run on, so
// they keep its labels and ports until they are deleted.
func (d state) left(was, now *Set) map[uint32]policy.Pod {
	gone := make(map[[2]string]*policy.Pod, len(d.pods))
	for _, pod := range d.pods {
		if pod.Name != "" {
			gone[[2]string{pod.Namespace, pod.Name}] = nil
		}
	}
	for i := range was.Pods {
		at := [2]string{was.Pods[i].Namespace, was.Pods[i].Name}
		if _, here := gone[at]; here && !was.Pods[i].HostNetwork {
			gone[at] = &was.Pods[i]
		}
	}
	for i := range now.Pods {
		delete(gone, [2]string{now.Pods[i].Namespace, now.Pods[i].Name})
	}
	left := map[uint32]policy.Pod{}
	for id, pod := range d.pods {
		if p := gone[[2]string{pod.Namespace, pod.Name}]; p != nil {
			pod.Labels, pod.Ports, pod.Lacks = p.Labels, p.Ports, p.Lacks
			left[id] = pod
		}
	}
	return left
}

// refresh brings rows up to date with the files and the endpoints. What was in force is compiled however much work it
// is. join writes the rows of endpoints that join, which are given their rule sets. The caller has the lock of the
// rows.
func (p Policies) refresh(docs documents, now state, join func(map[netip.Addr]policy.Sets) error) error {
	limits := policy.Limits{}
	if join != nil {
		limits = policy.Limits{Work: policy.MostWork, Joins: true}
	}
	w, err := p.plan(docs, now, limits)
	if err != nil {
		return err
	}
	if err := p.mark(docs); err != nil {
		return err
	}
	if _, err := w.write(join); err != nil {
		return err
	}
	return p.finish()
}

// idle reports whether there are neither policies nor rows of them.
func (d documents) idle() bool {
	for _, s := range []state{d.now, d.before} {
		for _, set := range s.sets {
			if len(set.Policies) > 0 {
				return false
			}
		}
	}
	return true
}

// same reports whether two pods have one form in a file.
func same(a, b policy.Pod) bool {
	x, err := json.Marshal(a, json.Deterministic(true))
	y, errY := json.Marshal(b, json.Deterministic(true))
	return err == nil && errY == nil && bytes.Equal(x, y)
}
