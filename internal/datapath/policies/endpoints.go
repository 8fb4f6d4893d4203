// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/policy"
)

// Admit stores what policies may know of an endpoint, unless pod is nil, and calls join to write its rows, with the rule sets
// of its addresses: no packet finds the endpoint without them. It reports whether policies know something else of the endpoint than
// before. The caller has the lock of the rows.
func (p Policies) Admit(id uint32, addresses []netip.Addr, pod *policy.Pod, join func(map[netip.Addr]policy.Sets) error) (changed bool, err error) {
	docs, err := p.read()
	if err != nil {
		return false, err
	}
	was := docs
	if pod != nil && !same(docs.pods[id], *pod) {
		if err := p.mark(); err != nil {
			return false, err
		}
		if err := p.put(docs, podKey(id), *pod); err != nil {
			return false, err
		}
		docs.pods = maps.Clone(docs.pods)
		docs.pods[id] = *pod
		docs.pending, changed = true, true
	}
	if docs.idle() {
		return changed, errors.Join(join(nil), p.finish(docs.pending))
	}
	joining := map[netip.Addr]uint32{}
	for _, a := range addresses {
		joining[a.Unmap()] = id
	}
	return changed, p.refresh(was, docs, joining, join)
}

// Known returns what policies know of the pod of an endpoint: what Admit has stored, or else what a document says of the pod that
// has one of the addresses. The caller has the lock of the rows.
func (p Policies) Known(id uint32, addresses []netip.Addr) (policy.Pod, error) {
	docs, err := p.read()
	if pod, ok := docs.pods[id]; ok || err != nil {
		return pod, err
	}
	for _, owner := range docs.trusted() {
		for _, pod := range docs.sets[owner].now.Pods {
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
	for id, pod := range docs.pods {
		if pod.Namespace == namespace && pod.Name == name {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Forget calls remove to delete the rows of endpoints, and forgets what it knows of them. The caller has the lock of the rows.
func (p Policies) Forget(ids []uint32, remove func() error) error {
	docs, err := p.read()
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(ids, func(id uint32) bool { _, ok := docs.pods[id]; return ok })
	if docs.idle() && !known {
		return remove()
	}
	if err := p.mark(); err != nil {
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	if docs.idle() {
		return p.finish(true)
	}
	return p.refresh(docs, docs, nil, nil)
}

// left returns what endpoints are to be known by whose Pod an owner no longer names: their processes may run on, so they keep its labels and
// ports until they are deleted.
func (d documents) left(was, now *Set) map[uint32]policy.Pod {
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

// putLeft stores what left has returned. It returns the keys of the pieces of before.
func (p Policies) putLeft(d documents, left map[uint32]policy.Pod) (gone []documentKey, err error) {
	for id, pod := range left {
		key := podKey(id)
		old := d.heads[key]
		if same(d.pods[id], pod) {
			continue
		}
		if err := p.put(d, key, pod); err != nil {
			return gone, err
		}
		gone = append(gone, documentKey{key.Kind, key.ID, old.revision, 0}.pieces(old.length)...)
	}
	return gone, nil
}

// refresh brings rows up to date with the documents and the endpoints. What was in force is compiled however much work it is. The caller has
// the lock of the rows.
func (p Policies) refresh(was, docs documents, joining map[netip.Addr]uint32, join func(map[netip.Addr]policy.Sets) error) error {
	docs.joining, was.pending = joining, true
	w, err := p.plan(was, docs, nil, false)
	if err != nil {
		return err
	}
	w.joining = joining
	if err := p.mark(); err != nil {
		return err
	}
	_, err = w.write(join)
	return errors.Join(err, p.finish(err == nil))
}

// resume compiles what is in force for a compiler that knows nothing, however much work it is, and, if rows may be behind, what comes to it.
func (w *writer) resume(before, d documents, s policy.Snapshot, check bool) error {
	c := w.compiler
	if before.pending && !check && d.joining == nil {
		return c.Resume(s)
	}
	old, err := w.snapshot(before)
	if err == nil {
		err = c.Resume(old)
	}
	if err != nil || !before.pending {
		return err
	}
	if err := c.Join(s); err != nil || !check {
		return err
	}
	return c.Check(s)
}

// idle reports whether there are neither policies nor rows of them.
func (d documents) idle() bool {
	for _, s := range d.sets {
		if len(s.now.Policies) > 0 || s.before != nil {
			return false
		}
	}
	return true
}

func podKey(id uint32) documentKey { return documentKey{Kind: ofEndpoint, ID: id} }
