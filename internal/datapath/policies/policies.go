// SPDX-License-Identifier: Apache-2.0

// Package policies keeps network policies in a datapath: policies and the labels of pods in files, which are the truth,
// and as rows what package policy makes of them.
package policies

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// Policies are the network policies of a datapath.
type Policies struct {
	// Objects are the maps, with open tables.
	Objects *objects.Objects
	// Node returns the addresses of this node.
	Node func() ([]netip.Addr, error)
}

// Set is what an owner says.
type Set struct {
	policy.Snapshot
	// Audit counts what the policies deny and lets it pass. While policies of another owner are enforced, these have no
	// part in verdicts.
	Audit bool `json:",omitempty"`
	// Quota is into how many parts the room of a map is divided: the NetworkPolicies of a namespace may make rows for one.
	// 0 or 1: they may make any number.
	Quota int `json:"-"`
}

// Listed is a policy with what is known of it.
type Listed struct {
	policy.Policy
	Owner service.Owner
	// Pods is how many pods of this node it selects.
	Pods int
	// Audited tells that what the policy denies passes. If it is Off, it is not even counted: policies of another owner
	// are enforced.
	Audited, Off bool
}

// Result tells what a change did. Policies are counted, and rows that were written or deleted.
type Result struct {
	Added, Updated, Deleted, Unchanged int
	Rows                               int
	// Gone are the names of policies that were deleted, sorted.
	Gone []string
	// Audit tells that policies which stay are now audited, or now enforced; nil: neither is new.
	Audit *bool
}

// List returns all policies, sorted as they are asked.
func (p Policies) List() ([]Listed, error) {
	docs, err := p.read()
	if err != nil || len(docs.now.sets) == 0 {
		return nil, err
	}
	s, err := p.assemble(docs.now)
	if err != nil {
		return nil, err
	}
	var all []Listed
	s.Policies = nil
	off := docs.now.enforcedBy(0) != 0
	for _, owner := range docs.now.owners() {
		said := docs.now.sets[owner]
		for _, each := range said.Policies {
			all = append(all, Listed{Policy: each, Owner: owner, Audited: said.Audit, Off: said.Audit && off})
		}
		s.Policies = append(s.Policies, said.Policies...)
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

// ByOwner returns the policies of each owner.
func (p Policies) ByOwner(ctx context.Context) (map[service.Owner][]policy.Policy, error) {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	docs, err := p.read()
	of := map[service.Owner][]policy.Policy{}
	for owner, set := range docs.now.sets {
		of[owner] = set.Policies
	}
	return of, err
}

// Audited reports whether there are policies and they are only audited.
func (p Policies) Audited() (bool, error) {
	docs, err := p.read()
	return docs.now.audit(), err
}

// Apply makes what an owner says of policies, pods, nodes and namespaces exactly want. All is checked before anything
// is written. Established connections that are no longer allowed end. The same call completes one that was killed.
// Errors: those of policy.Steps; *objects.FullError; *LostError; policies to audit while those of another owner are
// enforced.
func (p Policies) Apply(ctx context.Context, owner service.Owner, want Set) (Result, error) {
	return p.change(ctx, owner, apply, func(Set) Set { return want })
}

// Try returns what Apply would return, but for rows, and writes nothing.
func (p Policies) Try(ctx context.Context, owner service.Owner, want Set) (Result, error) {
	return p.change(ctx, owner, try, func(Set) Set { return want })
}

// Delete deletes those of an owner's policies for which a function is true, however much work the others are. Pods,
// nodes and namespaces stay.
func (p Policies) Delete(ctx context.Context, owner service.Owner, is func(policy.Policy) bool) (Result, error) {
	return p.change(ctx, owner, remove, func(s Set) Set {
		s.Policies = slices.DeleteFunc(slices.Clone(s.Policies), is)
		return s
	})
}

// verb is how to change what an owner has said: remove adds nothing, and try writes nothing.
type verb uint8

const (
	apply verb = iota
	remove
	try
)

// change replaces what an owner has said, or only tries to.
func (p Policies) change(
	ctx context.Context, owner service.Owner, how verb, edit func(Set) Set,
) (result Result, err error) {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return result, err
	}
	defer lock.Unlock()
	docs, err := p.read()
	if err == nil && docs.pending && how != try {
		_ = p.refresh(docs, docs.now, nil) // it may need room that this change makes
		docs, err = p.read()
	}
	if err != nil {
		return result, err
	}
	was := docs.now.sets[owner]
	want := edit(was)
	if by := docs.now.enforcedBy(owner); how != remove && want.Audit && by != 0 {
		return result, fmt.Errorf("audit: policies of owner %s are enforced; nothing was changed", by)
	}
	text, err := encode(want)
	if err != nil {
		return result, err
	}
	result.count(&was, &want)
	next := docs.now
	next.sets, next.pods = maps.Clone(docs.now.sets), maps.Clone(docs.now.pods)
	next.sets[owner] = want
	left := docs.now.left(&was, &want)
	maps.Copy(next.pods, left)
	changes := how == try || string(text) != string(docs.texts[owner])
	limits := policy.Limits{}
	if how != remove && changes {
		limits = policy.Limits{Work: policy.MostWork, Quota: p.quota(want.Quota)}
	}
	w, err := p.plan(docs, next, limits)
	if err != nil || how == try {
		return result, err
	}
	if !changes && !docs.pending && w.idle() {
		return result, nil
	}
	if err := p.mark(docs); err != nil {
		return result, err
	}
	for id, pod := range left {
		if err := p.putPod(id, pod); err != nil {
			return result, err
		}
	}
	if changes {
		if err := p.putSet(owner, text); err != nil {
			return result, err
		}
	}
	if result.Rows, err = w.write(nil); err != nil {
		return result, err
	}
	return result, p.finish()
}

// count counts the policies that differ.
func (r *Result) count(have, want *Set) {
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
}

// Snapshot returns all that verdicts on this node depend on.
func (p Policies) Snapshot() (policy.Snapshot, error) {
	docs, err := p.read()
	if err != nil {
		return policy.Snapshot{}, err
	}
	s, err := p.assemble(docs.now)
	if err == nil {
		err = p.addLinkLocal(&s)
	}
	return s, err
}

// Recover completes what a killed process left undone, if there is something.
func (p Policies) Recover(ctx context.Context) error {
	if pending, err := p.Pending(); err != nil || !pending {
		return err
	}
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	docs, err := p.read()
	if err != nil {
		return err
	}
	return p.refresh(docs, docs.now, nil)
}

// Pending reports whether a process changes policies, or was killed while it did. It takes no lock.
func (p Policies) Pending() (bool, error) {
	docs, err := p.read()
	return docs.pending, err
}
