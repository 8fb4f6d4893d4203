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
	"errors"
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
}

// Set is what an owner says.
type Set struct {
	policy.Snapshot
	// Audit counts what the policies deny and lets it pass. It has an effect if all owners that have policies say so.
	Audit bool `json:",omitempty"`
}

// Listed is a policy with what is known of it.
type Listed struct {
	policy.Policy
	Owner service.Owner
	// Pods is how many pods of this node it selects.
	Pods int
	// Audited tells that what the policy denies passes: policies are only audited.
	Audited bool
}

// Result tells what a change did. Policies are counted, and rows that were written or deleted.
type Result struct {
	Added, Updated, Deleted, Unchanged int
	Rows                               int
}

// List returns all policies, sorted as they are asked.
func (p Policies) List() ([]Listed, error) {
	docs, err := p.read()
	if err != nil || len(docs.sets) == 0 {
		return nil, err
	}
	s, err := p.assemble(docs, nil)
	if err != nil {
		return nil, err
	}
	audited, selected := docs.audit(), s.Selected()
	var all []Listed
	for _, owner := range docs.owners() { // as in assemble
		for _, each := range docs.sets[owner].now.Policies {
			all = append(all, Listed{each, owner, selected[len(all)], audited})
		}
	}
	slices.SortFunc(all, func(a, b Listed) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Audited reports whether there are policies and they are only audited.
func (p Policies) Audited() (bool, error) {
	docs, err := p.read()
	return docs.audit(), err
}

// Apply makes what an owner says of policies, pods, nodes and namespaces exactly want. All is checked before anything is
// written. Established connections that are no longer allowed end. The same call completes one that was killed. Errors:
// those of policy.Compile; *objects.FullError.
func (p Policies) Apply(ctx context.Context, owner service.Owner, want Set) (Result, error) {
	return p.change(ctx, owner, func(Set) Set { return want })
}

// Delete deletes those of an owner's policies for which a function is true. Pods, nodes and namespaces stay.
func (p Policies) Delete(ctx context.Context, owner service.Owner, is func(policy.Policy) bool) (Result, error) {
	return p.change(ctx, owner, func(s Set) Set {
		s.Policies = slices.DeleteFunc(slices.Clone(s.Policies), is)
		return s
	})
}

// change replaces what an owner has said.
func (p Policies) change(ctx context.Context, owner service.Owner, edit func(Set) Set) (result Result, err error) {
	lock, err := p.Objects.Lock(ctx)
	if err != nil {
		return result, err
	}
	defer lock.Unlock()
	docs, err := p.read()
	if err != nil {
		return result, err
	}
	have := docs.sets[owner].now
	want := edit(have)
	result.count(have.Policies, want.Policies)
	unchanged := same(have, want)
	if unchanged && !docs.pending {
		return result, nil
	}
	w, err := p.plan(docs.with(owner, want), nil)
	if err != nil {
		return result, err
	}
	if err := p.mark(); err != nil {
		return result, err
	}
	if !unchanged {
		if err := p.put(docs, documentKey{Kind: ofOwner, ID: uint32(owner)}, want, true); err != nil {
			return result, err
		}
	}
	result.Rows, err = w.write(nil)
	return result, errors.Join(err, p.finish(err == nil))
}

// count counts the policies that differ.
func (r *Result) count(have, want []policy.Policy) {
	old := map[name]policy.Policy{}
	for _, each := range have {
		old[nameOf(each)] = each
	}
	for _, each := range want {
		was, ok := old[nameOf(each)]
		delete(old, nameOf(each))
		switch {
		case !ok:
			r.Added++
		case same(was, each):
			r.Unchanged++
		default:
			r.Updated++
		}
	}
	r.Deleted = len(old)
}

// name tells policies apart.
type name struct {
	tier            policy.Tier
	namespace, name string
}

func nameOf(p policy.Policy) name { return name{p.Tier, p.Namespace, p.Name} }

// same reports whether two values have one form as a document.
func same(a, b any) bool {
	x, err := json.Marshal(a)
	y, errY := json.Marshal(b)
	return err == nil && errY == nil && bytes.Equal(x, y)
}

// Snapshot returns all that verdicts on this node depend on.
func (p Policies) Snapshot() (policy.Snapshot, error) {
	docs, err := p.read()
	if err != nil {
		return policy.Snapshot{}, err
	}
	s, err := p.assemble(docs, nil)
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
	return p.refresh(docs, nil, nil)
}

// Pending reports whether a process changes policies, or was killed while it did. It takes no lock.
func (p Policies) Pending() (bool, error) {
	_, pending, err := p.tables().documents.Get(markKey)
	return pending, err
}
