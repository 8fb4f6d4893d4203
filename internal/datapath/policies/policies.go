// SPDX-License-Identifier: Apache-2.0

// Package policies keeps network policies in a datapath: the policies themselves and the labels of pods as documents, and
// what package policy compiles them to as rows, which programs read. Documents are the truth. Rows follow them under the
// lock of the rows, and a mark tells the next command that a killed one left some behind.
package policies

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

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
	// Listening calls each with the cookie of each network namespace, and the TCP ports that something there listens on.
	Listening func(each func(cookie uint64, ports func() []uint16) error) error
	// Memory has what the last change left; nil: nothing is remembered.
	Memory *Memory
}

// Set is what an owner says.
type Set struct {
	policy.Snapshot
	// Audit counts what the policies deny and lets it pass. While policies of another owner are enforced, these have no part in verdicts.
	Audit bool `json:",omitempty"`
	// Quota is into how many parts the room of a map is divided: the NetworkPolicies of a namespace may make rows for one. 0 or 1: they may make any number.
	Quota int `json:"-"`
}

// Listed is a policy with what is known of it.
type Listed struct {
	policy.Policy
	Owner service.Owner
	// Pods is how many pods of this node it selects.
	Pods int
	// Audited tells that what the policy denies passes. If it is Off, it is not even counted: policies of another owner are enforced.
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
	docs, err := p.recall()
	if err != nil || len(docs.sets) == 0 {
		return nil, err
	}
	s, err := p.assemble(docs)
	if err != nil {
		return nil, err
	}
	var all []Listed
	s.Policies = nil
	off := docs.enforcedBy(0, set.current) != 0
	for _, owner := range docs.owners() {
		said := docs.sets[owner].now
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

// Others returns the policies of other owners.
func (p Policies) Others(ctx context.Context, but service.Owner) (all []policy.Policy, err error) {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	docs, compiler, err := p.take()
	if err != nil {
		return nil, err
	}
	p.keep(docs, compiler)
	for _, owner := range docs.owners() {
		if owner != but {
			all = append(all, docs.sets[owner].now.Policies...)
		}
	}
	return all, nil
}

// Audited reports whether there are policies and they are only audited.
func (p Policies) Audited() (bool, error) {
	docs, err := p.recall()
	return docs.audit(), err
}

// Apply makes what an owner says of policies, pods, nodes and namespaces exactly want. All is checked before anything is
// written. Established connections that are no longer allowed end. The same call completes one that was killed. Errors:
// those of policy.Compile; *objects.FullError; *policy.QuotaError; policies to audit while those of another owner are enforced. The handle remembers
// want, which must not be edited afterwards.
func (p Policies) Apply(ctx context.Context, owner service.Owner, want Set) (Result, error) {
	return p.change(ctx, owner, apply, func(d documents, _ Set) (Set, error) { return want, d.refuseAudit(owner, want) })
}

// Try returns what Apply would return, but for rows, and writes nothing.
func (p Policies) Try(ctx context.Context, owner service.Owner, want Set) (Result, error) {
	return p.change(ctx, owner, try, func(d documents, _ Set) (Set, error) { return want, d.refuseAudit(owner, want) })
}

// refuseAudit refuses policies to audit that would have no part in verdicts.
func (d documents) refuseAudit(owner service.Owner, want Set) error {
	if by := d.enforcedBy(owner, set.current); want.Audit && by != 0 {
		return fmt.Errorf("audit: policies of owner %s are enforced; nothing was changed", by)
	}
	return nil
}

// Delete deletes those of an owner's policies for which a function is true, however much work the others are. Pods, nodes and namespaces stay.
func (p Policies) Delete(ctx context.Context, owner service.Owner, is func(policy.Policy) bool) (Result, error) {
	return p.change(ctx, owner, remove, func(_ documents, s Set) (Set, error) {
		s.Policies = slices.DeleteFunc(slices.Clone(s.Policies), is)
		return s, nil
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
func (p Policies) change(ctx context.Context, owner service.Owner, how verb, edit func(documents, Set) (Set, error)) (result Result, err error) {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return result, err
	}
	defer lock.Unlock()
	docs, compiler, err := p.takeWhole(how)
	if err != nil {
		return result, err
	}
	was := docs.sets[owner].content
	said, err := edit(docs, was.now)
	if err != nil {
		return result, err
	}
	want := newContent(said)
	result.count(&was, &want)
	unchanged := was.equal(&want)
	if unchanged && !docs.pending && how != try {
		want.parts = was.parts
		docs = docs.with(owner, want).without() // the caller has it anyway, and what was read goes
		result.Rows, err = p.follow(docs, compiler)
		return result, err
	}
	if docs.node, err = p.Node(); err != nil {
		return result, err
	}
	left := docs.left(&was.now, &want.now)
	next := docs.with(owner, want)
	next.pods = maps.Clone(docs.pods)
	maps.Copy(next.pods, left)
	w, err := p.plan(docs, next, compiler, how != remove && !unchanged)
	if said.Quota > 1 && !unchanged {
		if over := p.checkQuota(next, said, w, err == nil); over != nil {
			return result, over
		}
	}
	if err != nil || how == try {
		return result, err
	}
	put, gone := func() error { return nil }, []documentKey(nil)
	if !unchanged {
		if put, gone, err = p.packContent(docs, owner, &was, &want); err != nil {
			return result, err
		}
	}
	if err := p.mark(); err != nil {
		return result, err
	}
	more, err := p.putLeft(docs, left)
	if err != nil {
		return result, err
	}
	if err := put(); err != nil {
		return result, err
	}
	gone = append(gone, more...)
	if result.Rows, err = w.write(nil); err != nil {
		return result, err
	}
	if docs.pending {
		return result, p.finish(true)
	}
	if err := p.settle(docs, owner, gone); err != nil {
		return result, err
	}
	p.keep(next.without(), w.compiler)
	return result, nil
}

// takeWhole takes what there is for a change. What one that was broken off has left is completed first: its documents have the room of this one's.
func (p Policies) takeWhole(how verb) (documents, *policy.Compiler, error) {
	docs, compiler, err := p.take()
	if err != nil || !docs.pending || how == try {
		return docs, compiler, err
	}
	_ = p.refresh(docs, docs, nil, nil) // it may need room that this change makes
	return p.take()
}

// follow writes what follows from other addresses of the node, while documents stay. What a compiler has followed is compared, and
// without one the rows that there are.
func (p Policies) follow(docs documents, compiler *policy.Compiler) (rows int, err error) {
	had := docs.node
	if !docs.idle() {
		if docs.node, err = p.Node(); err != nil {
			return 0, err
		}
	}
	if docs.idle() || compiler != nil && slices.Equal(docs.node, had) {
		p.keep(docs, compiler)
		return 0, nil
	}
	w, err := p.plan(docs, docs, compiler, false)
	if err != nil {
		return 0, err
	}
	if !w.idle() {
		if err := p.mark(); err != nil {
			return 0, err
		}
		if rows, err = w.write(nil); err != nil {
			return rows, err
		}
		if err := p.finish(true); err != nil {
			return rows, err
		}
	}
	p.keep(docs, w.compiler)
	return rows, nil
}

// same reports whether two values have one form as a document.
func same(a, b any) bool {
	x, err := json.Marshal(a)
	y, errY := json.Marshal(b)
	return err == nil && errY == nil && bytes.Equal(x, y)
}

// Snapshot returns all that verdicts on this node depend on.
func (p Policies) Snapshot() (policy.Snapshot, error) {
	docs, err := p.recall()
	if err != nil {
		return policy.Snapshot{}, err
	}
	s, err := p.assemble(docs)
	if err == nil {
		err = p.addLinkLocal(&s)
	}
	s.Previous = nil
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
	return p.refresh(docs, docs, nil, nil)
}

// Pending reports whether a process changes policies, or was killed while it did. It takes no lock.
func (p Policies) Pending() (bool, error) {
	_, pending, err := p.tables().documents.Get(markKey)
	return pending, err
}
