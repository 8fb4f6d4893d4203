// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// SocketScope is a network namespace that an owner has registered. Its sockets are translated as long as it has an
// owner or an endpoint. Owners register a namespace independently of each other, each as one kind.
type SocketScope struct {
	// Cookie identifies the namespace; it is not used again.
	Cookie uint64
	Owner  service.Owner
	Kind   ScopeKind
}

// ScopeKind tells what a registered network namespace is.
type ScopeKind uint8

// The kinds.
const (
	// HostScope is a host. Services with a loopback frontend are served there, and only there.
	HostScope ScopeKind = iota + 1
	// PodScope is a pod that is not an endpoint: its packets pass no program. A loopback address is the pod's own, also
	// if another owner has it as a host.
	PodScope
)

// String returns the lower-case name.
func (k ScopeKind) String() string {
	if names := []string{"none", "host", "pod"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Get returns what an owner registered of a network namespace. The error is a *NotFoundError if that is nothing. It
// takes no lock.
func (s Sockets) Get(_ context.Context, owner service.Owner, cookie uint64) (SocketScope, error) {
	row, _, err := s.o.Namespaces.Get(cookie)
	scope := SocketScope{cookie, owner, decodeScope(row, owner)}
	if err == nil && scope.Kind == 0 {
		err = scopeNotFound(owner, cookie)
	}
	return scope, err
}

// List returns what all owners have registered, sorted by cookie and owner. It takes no lock.
func (s Sockets) List(context.Context) ([]SocketScope, error) {
	var all []SocketScope
	for row, err := range s.o.Namespaces.All() {
		if err != nil {
			return nil, err
		}
		for owner := service.CNI; owner <= service.Lab; owner++ {
			if kind := decodeScope(row.Value, owner); kind != 0 {
				all = append(all, SocketScope{row.Key, owner, kind})
			}
		}
	}
	slices.SortFunc(all, func(a, b SocketScope) int {
		return cmp.Or(cmp.Compare(a.Cookie, b.Cookie), cmp.Compare(a.Owner, b.Owner))
	})
	return all, nil
}

// Put registers a network namespace for an owner, or changes its kind. The error is an *objects.FullError if there is
// no room.
func (s Sockets) Put(ctx context.Context, owner service.Owner, ns *netns.Namespace, kind ScopeKind) (Change, error) {
	cookie, err := ns.Cookie()
	if err != nil {
		return Unchanged, err
	}
	want := SocketScope{cookie, owner, kind}
	if err := want.check(); err != nil {
		return Unchanged, err
	}
	var result Result
	err = s.write(ctx, []SocketScope{want}, &result)
	return result.change(), err
}

// Delete reverses Put. If the namespace has another owner or an endpoint, its sockets are translated all the same. The
// namespace may be gone. The error is a *NotFoundError if the owner has not registered it.
func (s Sockets) Delete(ctx context.Context, owner service.Owner, cookie uint64) error {
	if err := requireOwner(owner); err != nil {
		return err
	}
	var result Result
	err := s.write(ctx, []SocketScope{{Cookie: cookie, Owner: owner}}, &result)
	if err == nil && result.Deleted == 0 {
		err = scopeNotFound(owner, cookie)
	}
	return err
}

// Apply makes the namespaces that an owner has registered exactly those of want, whose owners it ignores. It writes
// only rows that differ, and takes the lock only for those. The same call again completes one that failed. The result
// counts what was done, also if there is an error. Errors: *objects.FullError; a namespace that is in want twice is
// refused.
func (s Sockets) Apply(ctx context.Context, owner service.Owner, want []SocketScope) (result Result, err error) {
	if err := requireOwner(owner); err != nil {
		return result, err
	}
	kinds := make(map[uint64]ScopeKind, len(want))
	for _, w := range want {
		w.Owner = owner
		if err := w.check(); err != nil {
			return result, err
		}
		if kinds[w.Cookie] != 0 {
			return result, fmt.Errorf("network namespace with cookie %d is wanted twice", w.Cookie)
		}
		kinds[w.Cookie] = w.Kind
	}
	have, err := s.List(ctx)
	if err != nil {
		return result, err
	}
	var changes []SocketScope // deletions first, which make room
	for _, h := range have {
		switch {
		case h.Owner != owner:
		case kinds[h.Cookie] == 0:
			changes = append(changes, SocketScope{Cookie: h.Cookie, Owner: owner})
		case kinds[h.Cookie] == h.Kind:
			delete(kinds, h.Cookie)
			result.Unchanged++
		}
	}
	for cookie, kind := range kinds {
		changes = append(changes, SocketScope{cookie, owner, kind})
	}
	return result, s.write(ctx, changes, &result)
}

// write makes changes in chunks, of which each is one hold of the lock. Kind 0 deletes a registration. Those of other
// owners stay.
func (s Sockets) write(ctx context.Context, changes []SocketScope, result *Result) error {
	if len(changes) == 0 {
		return nil
	}
	lock, err := s.o.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	for i, change := range changes {
		if i > 0 && i%chunkChanges == 0 {
			if err := lock.Yield(ctx); err != nil {
				return err
			}
		}
		var had ScopeKind
		err := changeNamespace(s.o, change.Cookie, func(row *objects.SocketScope) {
			had = decodeScope(*row, change.Owner)
			encodeScope(row, change.Owner, change.Kind)
		})
		switch {
		case err != nil:
			return err
		case had == change.Kind: // another process did it meanwhile
			result.Unchanged++
		case had == 0:
			result.Added++
		case change.Kind == 0:
			result.Deleted++
		default:
			result.Updated++
		}
	}
	return nil
}

// Sweep deletes pods of an owner whose network namespace has neither a name nor a process, except those whose cookie
// keep accepts.
func (s Sockets) Sweep(ctx context.Context, owner service.Owner, keep func(cookie uint64) bool) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	gone := make(map[uint64]bool)
	for _, scope := range all {
		if scope.Owner == owner && scope.Kind == PodScope && !keep(scope.Cookie) {
			gone[scope.Cookie] = true
		}
	}
	if len(gone) == 0 {
		return nil // which spares the look at all processes
	}
	if err := eachNamespace(func(_ *netns.Namespace, cookie uint64) error {
		delete(gone, cookie)
		return nil
	}); err != nil {
		return err
	}
	for cookie := range gone {
		if err := s.Delete(ctx, owner, cookie); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func scopeNotFound(owner service.Owner, cookie uint64) error {
	return &NotFoundError{What: fmt.Sprintf("socket translation of the network namespace with cookie %d for owner %s",
		cookie, owner)}
}

// check returns an error if there can be no such registration.
func (s SocketScope) check() error {
	if s.Cookie == 0 || s.Kind != HostScope && s.Kind != PodScope {
		return fmt.Errorf("no registration of a network namespace: cookie %d, kind %s", s.Cookie, s.Kind)
	}
	return requireOwner(s.Owner)
}

// changeNamespace changes the row of a network namespace, which goes with its last flag. A killed process leaves the
// row as it was or as it is to be. The caller has the lock.
func changeNamespace(o *objects.Objects, cookie uint64, change func(*objects.SocketScope)) error {
	old, _, err := o.Namespaces.Get(cookie)
	if err != nil {
		return err
	}
	row := old
	change(&row)
	switch {
	case row == old:
		return nil
	case row.Flags == 0:
		return o.Namespaces.Delete(cookie)
	}
	return o.Namespaces.Put(cookie, row)
}

// enableSockets enables translation in the namespace of an endpoint; cookie 0 is a pod without one. The caller has the
// lock.
func enableSockets(o *objects.Objects, cookie uint64) error {
	if cookie == 0 {
		return nil
	}
	return changeNamespace(o, cookie, func(row *objects.SocketScope) { row.Flags |= objects.NamespacePod })
}

// disableSockets reverses enableSockets, unless one of the endpoints that are left is in the namespace. The caller has
// the lock.
func disableSockets(o *objects.Objects, cookie uint64, left map[uint64]bool) error {
	if cookie == 0 || left[cookie] {
		return nil
	}
	return changeNamespace(o, cookie, func(row *objects.SocketScope) { row.Flags &^= objects.NamespacePod })
}

// eachNamespace calls fn with the network namespaces that have a name or a process.
func eachNamespace(fn func(ns *netns.Namespace, cookie uint64) error) error {
	return withNamespaces(func(by map[uint64]*netns.Namespace) error {
		for cookie, ns := range by {
			if err := fn(ns, cookie); err != nil {
				return err
			}
		}
		return nil
	})
}

// withNamespaces calls fn with all network namespaces by their cookies, the calling thread's too.
func withNamespaces(fn func(by map[uint64]*netns.Namespace) error) (err error) {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	own, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	by := make(map[uint64]*netns.Namespace)
	for _, ns := range append([]*netns.Namespace{own}, snapshot.Namespaces()...) {
		cookie, err := ns.Cookie()
		if err != nil {
			return err
		}
		by[cookie] = ns
	}
	return fn(by)
}
