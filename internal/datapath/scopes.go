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
	"mustang/internal/netns"
	"mustang/internal/service"
)

// SocketScope is a network namespace that an owner has registered. Its sockets are translated as long as it has an
// owner or an endpoint. Owners register a namespace independently of each other, each as one kind.
type SocketScope struct {
	Cookie uint64 // identifies the namespace; it is not used again
	Owner  service.Owner
	Kind   ScopeKind
}

// ScopeKind is the kind of a registered network namespace.
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

// Get returns an owner's registration of a network namespace. If it is missing, the error is a *NotFoundError. It
// takes no lock.
func (s Sockets) Get(_ context.Context, owner service.Owner, cookie uint64) (SocketScope, error) {
	row, _, err := s.o.Namespaces.Get(cookie)
	scope := SocketScope{cookie, owner, decodeScope(row, owner)}
	if err == nil && scope.Kind == 0 {
		err = scopeNotFound(owner, cookie)
	}
	return scope, err
}

// List returns the registrations of all owners, sorted by cookie and owner. It takes no lock.
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

// Put registers a network namespace for an owner, or changes its kind. If the map is full, the error is an
// *objects.FullError.
func (s Sockets) Put(ctx context.Context, owner service.Owner, ns *netns.Namespace, kind ScopeKind) (Change, error) {
	cookie, err := ns.Cookie()
	if err != nil {
		return Unchanged, err
	}
	if cookie == 0 || kind != HostScope && kind != PodScope {
		return Unchanged, fmt.Errorf("no registration of a network namespace: cookie %d, kind %s", cookie, kind)
	}
	switch had, err := s.register(ctx, SocketScope{cookie, owner, kind}); {
	case err != nil || had == kind:
		return Unchanged, err
	case had == 0:
		return Added, nil
	}
	return Updated, nil
}

// Delete reverses Put. If the namespace has another owner or an endpoint, its sockets are translated all the same. The
// namespace may be gone. The error is a *NotFoundError if the owner has not registered it.
func (s Sockets) Delete(ctx context.Context, owner service.Owner, cookie uint64) error {
	had, err := s.register(ctx, SocketScope{Cookie: cookie, Owner: owner})
	if err == nil && had == 0 {
		err = scopeNotFound(owner, cookie)
	}
	return err
}

// register stores a registration, and returns its former kind. Kind 0 deletes it. Registrations of other owners stay.
func (s Sockets) register(ctx context.Context, scope SocketScope) (had ScopeKind, err error) {
	if err := requireOwner(scope.Owner); err != nil {
		return 0, err
	}
	err = s.o.WithLock(ctx, func() error {
		return changeNamespace(s.o, scope.Cookie, func(row *objects.SocketScope) {
			had = decodeScope(*row, scope.Owner)
			encodeScope(row, scope.Owner, scope.Kind)
		})
	})
	return had, err
}

// DeleteAll deletes all that an owner has registered.
func (s Sockets) DeleteAll(ctx context.Context, owner service.Owner) error {
	return s.deleteIf(ctx, func(scope SocketScope) bool { return scope.Owner == owner })
}

// Sweep deletes pods of an owner whose network namespace lacks both a name and a process, except pods whose cookie
// keep accepts.
func (s Sockets) Sweep(ctx context.Context, owner service.Owner, keep func(cookie uint64) bool) error {
	matches := func(scope SocketScope) bool {
		return scope.Owner == owner && scope.Kind == PodScope && !keep(scope.Cookie)
	}
	if all, err := s.List(ctx); err != nil || !slices.ContainsFunc(all, matches) {
		return err // which spares the look at all processes
	}
	return withNamespaces(func(by map[uint64]*netns.Namespace) error {
		return s.deleteIf(ctx, func(scope SocketScope) bool { return matches(scope) && by[scope.Cookie] == nil })
	})
}

func (s Sockets) deleteIf(ctx context.Context, matches func(SocketScope) bool) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, scope := range all {
		if !matches(scope) {
			continue
		}
		if err := s.Delete(ctx, scope.Owner, scope.Cookie); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func scopeNotFound(owner service.Owner, cookie uint64) error {
	return &NotFoundError{What: fmt.Sprintf("socket translation of the network namespace with cookie %d for owner %s",
		cookie, owner)}
}

// decodeScope returns the kind as which an owner has registered the namespace of a row; 0 if it has not.
func decodeScope(row objects.SocketScope, owner service.Owner) ScopeKind {
	switch bit := uint8(1) << owner; {
	case row.HostOwners&bit != 0:
		return HostScope
	case row.PodOwners&bit != 0:
		return PodScope
	}
	return 0
}

func encodeScope(row *objects.SocketScope, owner service.Owner, kind ScopeKind) {
	row.HostOwners &^= 1 << owner
	row.PodOwners &^= 1 << owner
	switch kind {
	case HostScope:
		row.HostOwners |= 1 << owner
	case PodScope:
		row.PodOwners |= 1 << owner
	}
	row.Flags &= objects.NamespacePod
	if row.HostOwners != 0 {
		row.Flags |= objects.NamespaceHost
	}
	if row.PodOwners != 0 {
		row.Flags |= objects.NamespaceSockets
	}
}

// changeNamespace changes the row of a network namespace, which is deleted with its last flag. A killed process
// leaves the old row or the new one. The caller has the lock.
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

// enableSockets enables translation in the namespace of an endpoint; cookie 0: it has none. The caller has the lock.
func enableSockets(o *objects.Objects, cookie uint64) error {
	if cookie == 0 {
		return nil
	}
	return changeNamespace(o, cookie, func(row *objects.SocketScope) { row.Flags |= objects.NamespacePod })
}

// disableSockets reverses enableSockets, unless an endpoint is left in the namespace. The caller has the lock.
func disableSockets(o *objects.Objects, cookie uint64, left map[uint64]bool) error {
	if cookie == 0 || left[cookie] {
		return nil
	}
	return changeNamespace(o, cookie, func(row *objects.SocketScope) { row.Flags &^= objects.NamespacePod })
}
