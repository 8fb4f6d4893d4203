// SPDX-License-Identifier: Apache-2.0

// Package policies keeps network policies in a datapath: in authoritative files, as rows that package policy compiles.
package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// Listed is a policy with its state.
type Listed struct {
	policy.Policy
	Owner service.Owner
	// Pods is how many pods of this node it selects.
	Pods int
	// Audited: denied connections pass. Off: they are not even counted, as policies of another owner are enforced.
	Audited, Off bool
}

// Result is the effect of a change: numbers of policies, and of rows written or deleted.
type Result struct {
	Added, Updated, Deleted, Unchanged int
	Rows                               int
	// Gone are the names of policies that were deleted, sorted.
	Gone []string
	// Audit is true if remaining policies are now audited, false if now enforced; nil: neither is new.
	Audit *bool
}

// List returns all policies in their order.
func (p Policies) List() ([]Listed, error) {
	docs, err := p.read()
	if err != nil || len(docs.now.sets) == 0 {
		return nil, err
	}
	here, err := p.here()
	if err != nil {
		return nil, err
	}
	var all []Listed
	s := here.assemble(docs.now)
	s.Policies = nil
	off := docs.now.enforcedBy(0) != 0
	for _, owner := range docs.now.owners() {
		set := docs.now.sets[owner]
		for _, each := range set.Policies {
			all = append(all, Listed{Policy: each, Owner: owner, Audited: set.Audit, Off: set.Audit && off})
		}
		s.Policies = append(s.Policies, set.Policies...)
	}
	for i, n := range s.Selected() {
		all[i].Pods = n
	}
	slices.SortFunc(all, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner))
	})
	return all, nil
}

// ByOwner returns the policies of each owner, and the pods that are not the agent's: Admit has stored them, or they are
// of the sets of other owners.
func (p Policies) ByOwner(ctx context.Context) (of map[service.Owner][]policy.Policy, pods []policy.Pod, err error) {
	of = map[service.Owner][]policy.Policy{}
	err = p.locked(ctx, func(docs documents) error {
		pods = slices.Collect(maps.Values(docs.now.pods))
		for owner, set := range docs.now.sets {
			if of[owner] = set.Policies; owner != service.Agent {
				pods = append(pods, set.Pods...)
			}
		}
		return nil
	})
	return of, pods, err
}

// Audited reports whether there are policies and they are only audited.
func (p Policies) Audited() (bool, error) {
	docs, err := p.read()
	return docs.now.audit(), err
}

// Rules returns the rules' origins by number.
func (p Policies) Rules() (map[uint32]policy.Origin, error) {
	docs, err := p.read()
	if err != nil {
		return nil, err
	}
	numbers, err := p.tables().numbers.Rows()
	if err != nil {
		return nil, err
	}
	s := policy.Snapshot{Policies: slices.Concat(docs.before.inForce(), docs.now.inForce())}
	return s.Rules(numbers), nil
}

// Snapshot returns all that verdicts on this node depend on.
func (p Policies) Snapshot() (policy.Snapshot, error) {
	docs, err := p.read()
	if err != nil {
		return policy.Snapshot{}, err
	}
	here, err := p.here()
	if err != nil {
		return policy.Snapshot{}, err
	}
	s := here.assemble(docs.now)
	return s, p.addLinkLocal(&s)
}

// Pending reports whether a process changes policies, or was killed while it did. It takes no lock.
func (p Policies) Pending() (bool, error) {
	docs, err := p.read()
	return docs.pending, err
}

// Recover completes the unfinished work of a killed process, if any.
func (p Policies) Recover(ctx context.Context) error {
	if pending, err := p.Pending(); err != nil || !pending {
		return err
	}
	return p.locked(ctx, func(docs documents) error { return p.complete(docs) })
}

// complete brings rows up to date with the files. Policies that were in force are compiled without a limit of work.
func (p Policies) complete(docs documents) error {
	_, err := p.update(docs, docs.now, update{always: true})
	return err
}

// completed completes the unfinished work of a killed process, as far as maps have room: the next change may free rows.
func (p Policies) completed(docs documents) (documents, error) {
	if !docs.pending {
		return docs, nil
	}
	_ = p.complete(docs)
	return p.read()
}

// locked calls a function with the lock of the rows, and the files.
func (p Policies) locked(ctx context.Context, do func(documents) error) error {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	docs, err := p.read()
	if err != nil {
		return err
	}
	return do(docs)
}

// Apply makes the policies, pods, nodes and namespaces of an owner exactly want. It checks all before it writes
// anything. Established connections that are no longer allowed end. To complete a killed call, repeat it. Errors: as of
// policy.Steps; *objects.FullError; *LostError; policies to audit while policies of another owner are enforced.
func (p Policies) Apply(ctx context.Context, owner service.Owner, want Set) (r Result, err error) {
	err = p.locked(ctx, func(docs documents) (err error) {
		if docs, err = p.completed(docs); err == nil {
			r, err = p.replace(docs, owner, want, replacing{limits: true})
		}
		return err
	})
	return r, err
}

// Try returns the result of Apply, except rows, and writes nothing.
func (p Policies) Try(ctx context.Context, owner service.Owner, want Set) (r Result, err error) {
	err = p.locked(ctx, func(docs documents) error {
		r, err = p.replace(docs, owner, want, replacing{limits: true, dry: true})
		return err
	})
	return r, err
}

// Delete deletes the policies of an owner for which a function is true, whatever the others cost. Other objects stay.
func (p Policies) Delete(ctx context.Context, owner service.Owner, is func(policy.Policy) bool) (r Result, err error) {
	err = p.locked(ctx, func(docs documents) (err error) {
		if docs, err = p.completed(docs); err == nil {
			want := docs.now.sets[owner]
			want.Policies = slices.DeleteFunc(slices.Clone(want.Policies), is)
			r, err = p.replace(docs, owner, want, replacing{})
		}
		return err
	})
	return r, err
}

// replacing is how a set is replaced: within the limits, and without a write.
type replacing struct{ limits, dry bool }

func (p Policies) replace(docs documents, owner service.Owner, want Set, how replacing) (r Result, err error) {
	had := docs.now.sets[owner]
	if by := docs.now.enforcedBy(owner); how.limits && want.Audit && by != 0 {
		return r, fmt.Errorf("audit: policies of owner %s are enforced; nothing was changed", by)
	}
	text, err := encode(want)
	if err != nil {
		return r, err
	}
	r = difference(&had, &want)
	next := docs.now
	next.sets, next.pods = maps.Clone(docs.now.sets), maps.Clone(docs.now.pods)
	next.sets[owner] = want
	u := update{dry: how.dry, pods: docs.now.orphans(&had, &want)}
	maps.Copy(next.pods, u.pods)
	if string(text) != string(docs.texts[owner]) {
		u.sets = map[service.Owner][]byte{owner: text}
	}
	if how.limits && (how.dry || u.sets != nil) {
		u.limits = policy.Limits{Work: policy.MostWork, Quota: p.quota(want.Quota)}
	}
	r.Rows, err = p.update(docs, next, u)
	return r, err
}

func difference(have, want *Set) (r Result) {
	digests := func(s *Set) map[policy.Origin]policy.Digest {
		out := make(map[policy.Origin]policy.Digest, len(s.Policies))
		for i := range s.Policies {
			q := &s.Policies[i]
			out[policy.Origin{Tier: q.Tier, Namespace: q.Namespace, Name: q.Name}] = q.Digest()
		}
		return out
	}
	had, now := digests(have), digests(want)
	for n, d := range now {
		was, ok := had[n]
		switch {
		case !ok:
			r.Added++
		case was == d:
			r.Unchanged++
		default:
			r.Updated++
		}
	}
	for n := range had {
		if _, ok := now[n]; !ok {
			r.Gone = append(r.Gone, strings.TrimPrefix(n.Namespace+"/"+n.Name, "/"))
		}
	}
	slices.Sort(r.Gone)
	r.Deleted = len(r.Gone)
	if have.Audit != want.Audit && r.Updated+r.Unchanged > 0 {
		r.Audit = &want.Audit
	}
	return r
}

// update writes files, and brings rows up to date with next, which has these files. All is checked first. It returns
// the number of rows that were written. The caller has the lock of the rows.
func (p Policies) update(docs documents, next state, u update) (rows int, err error) {
	w := &writer{Policies: p}
	if idle := docs.now.idle() && docs.before.idle() && next.idle(); !idle {
		if w, err = p.plan(docs, next, u.limits); err != nil {
			return 0, err
		}
	}
	if u.dry {
		return 0, nil
	}
	writes := u.always || docs.pending || len(u.sets)+len(u.pods) > 0 ||
		slices.ContainsFunc(w.steps, func(s step) bool { return s.Len() > 0 })
	if writes {
		if err := p.begin(docs, u); err != nil {
			return 0, err
		}
	}
	if rows, err = w.write(u.join); err != nil || !writes {
		return rows, err
	}
	return rows, p.finish(docs, u)
}

// Admit stores the pod of an endpoint for policies, unless pod is nil. It calls join to write the rows of the
// endpoint with the rule sets of its addresses: no packet finds the endpoint without them. It reports whether the
// stored pod changed. The caller has the lock of the rows.
func (p Policies) Admit(id uint32, addresses []netip.Addr, pod *policy.Pod,
	join func(map[netip.Addr]policy.Sets) error) (changed bool, err error) {
	docs, err := p.read()
	if err != nil {
		return false, err
	}
	next := docs.now
	u := update{limits: policy.Limits{Work: policy.MostWork, Joins: true}, join: join}
	if pod != nil && !same(docs.now.pods[id], *pod) {
		changed, u.pods = true, map[uint32]policy.Pod{id: *pod}
		next.pods = maps.Clone(next.pods)
		next.pods[id] = *pod
	}
	next.joining = map[netip.Addr]uint32{}
	for _, a := range addresses {
		next.joining[a.Unmap()] = id
	}
	_, err = p.update(docs, next, u)
	return changed, err
}

// Known returns the pod of an endpoint for policies: the pod stored by Admit, or else a set's pod with one of the
// addresses. The caller has the lock of the rows.
func (p Policies) Known(id uint32, addresses []netip.Addr) (policy.Pod, error) {
	docs, err := p.read()
	if pod, ok := docs.now.pods[id]; ok || err != nil {
		return pod, err
	}
	for _, owner := range docs.now.byPrecedence() {
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

// Named returns the endpoints that Admit stored with a name. The caller has the lock of the links.
func (p Policies) Named(namespace, name string) (ids []uint32, err error) {
	docs, err := p.read()
	if errors.As(err, new(*LostError)) {
		err = nil
	}
	for id, pod := range docs.now.pods {
		if nameOf(&pod) == (podName{namespace, name}) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Forget calls remove to delete rows of endpoints, and deletes their stored pods. The caller has the lock of the rows.
func (p Policies) Forget(ids []uint32, remove func() error) error {
	docs, err := p.read()
	if errors.As(err, new(*LostError)) { // a pod that goes needs no policies
		return remove()
	}
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(ids, func(id uint32) bool { _, ok := docs.now.pods[id]; return ok })
	if docs.now.idle() && docs.before.idle() && !known {
		return remove()
	}
	if err := p.begin(docs, update{}); err != nil {
		return err
	}
	if err := remove(); err != nil {
		return err
	}
	return p.complete(docs)
}
