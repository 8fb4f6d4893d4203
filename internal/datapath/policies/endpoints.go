// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
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
	if pod != nil && !same(docs.pods[id], *pod) {
		if err := p.mark(); err != nil {
			return false, err
		}
		if err := p.put(docs, podKey(id), *pod); err != nil {
			return false, err
		}
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
	return changed, p.refresh(docs, joining, join)
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
	return p.refresh(docs, nil, nil)
}

// refresh brings rows up to date with the documents and the endpoints. The caller has the lock of the rows.
func (p Policies) refresh(docs documents, joining map[netip.Addr]uint32, join func(map[netip.Addr]policy.Sets) error) error {
	docs.joining = joining
	w, err := p.plan(documents{pending: true}, docs, nil)
	if err != nil {
		return err
	}
	if err := p.mark(); err != nil {
		return err
	}
	_, err = w.write(join)
	return errors.Join(err, p.finish(err == nil))
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
