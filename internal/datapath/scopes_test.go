// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// hostScope and podScope are registrations as Apply takes them.
func hostScope(cookie uint64) SocketScope { return SocketScope{Cookie: cookie, Kind: HostScope} }
func podScope(cookie uint64) SocketScope  { return SocketScope{Cookie: cookie, Kind: PodScope} }

// scopeApplier applies registrations.
type scopeApplier struct {
	*Datapath
	t *testing.T
}

// apply applies those of one owner, and wants all others, and the rows of endpoints, to stay.
func (a scopeApplier) apply(owner service.Owner, want Result, scopes ...SocketScope) {
	a.t.Helper()
	before := a.others(owner)
	if got, err := a.Sockets().Apply(a.t.Context(), owner, scopes); err != nil || got != want {
		a.t.Errorf("Apply = %+v, %v; want %+v", got, err, want)
	}
	if after := a.others(owner); !slices.Equal(before, after) {
		a.t.Errorf("other owners have %v, and had %v", after, before)
	}
	for _, s := range scopes {
		s.Owner = owner
		if got, err := a.Sockets().Get(a.t.Context(), owner, s.Cookie); err != nil || got != s {
			a.t.Errorf("Get = %v, %v; want %v", got, err, s)
		}
	}
	all, err := a.Sockets().List(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	if n := len(all) - len(before); n != len(scopes) {
		a.t.Errorf("owner %s has %d registrations in %v, want %d", owner, n, all, len(scopes))
	}
}

func (a scopeApplier) others(owner service.Owner) []SocketScope {
	a.t.Helper()
	all, err := a.Sockets().List(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s SocketScope) bool { return s.Owner == owner })
}

// TestApplySocketsMakesTheOwnersSet applies sets of two owners, which share a namespace and meet an endpoint in
// another.
func TestApplySocketsMakesTheOwnersSet(t *testing.T) {
	a := scopeApplier{openTest(t), t}
	flags := func(want map[uint64]uint32) {
		t.Helper()
		got, err := a.objects.Namespaces.Rows()
		failIf(t, err != nil || len(got) != len(want), "flags %v, %v; want %v", got, err, want)
		for cookie, w := range want {
			failIf(t, got[cookie].Flags != w, "namespace %d has flags %d, want %d", cookie, got[cookie].Flags, w)
		}
	}
	const h, p, endpoint = objects.NamespaceHost, objects.NamespaceSockets, objects.NamespacePod
	succeed(t, enableSockets(a.objects, 3))
	a.apply(service.CNI, Result{Added: 3}, hostScope(1), podScope(2), podScope(3))
	a.apply(service.CLI, Result{Added: 2}, hostScope(1), hostScope(2))
	flags(map[uint64]uint32{1: h, 2: h | p, 3: p | endpoint})
	a.apply(service.CNI, Result{Unchanged: 3}, podScope(3), podScope(2), hostScope(1))
	a.apply(service.CNI, Result{Unchanged: 1, Updated: 1, Deleted: 1, Added: 1}, podScope(1), podScope(3), podScope(4))
	flags(map[uint64]uint32{1: h | p, 2: h, 3: p | endpoint, 4: p})
	a.apply(service.CNI, Result{Deleted: 3})
	flags(map[uint64]uint32{1: h, 2: h, 3: endpoint})
	if err := disableSockets(a.objects, 1, nil); err != nil { // no endpoint there: the registration stays
		t.Fatal(err)
	}
	flags(map[uint64]uint32{1: h, 2: h, 3: endpoint})
	succeed(t, disableSockets(a.objects, 3, nil))
	a.apply(service.CLI, Result{Deleted: 2})
	flags(nil)
}

// TestApplySocketsWritesOnlyChanges holds the lock: a set that is there already needs none, one that is not waits for
// it.
func TestApplySocketsWritesOnlyChanges(t *testing.T) {
	d := openTest(t)
	scopeApplier{d, t}.apply(service.Agent, Result{Added: 2}, hostScope(1), podScope(2))
	held := must(d.objects.Lock(t.Context()))(t)
	defer held.Unlock()
	scopeApplier{d, t}.apply(service.Agent, Result{Unchanged: 2}, hostScope(1), podScope(2))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	var locked *lock.Error
	if got, err := d.Sockets().Apply(ctx, service.Agent, []SocketScope{podScope(2)}); !errors.As(err, &locked) ||
		got != (Result{Unchanged: 1}) {
		t.Errorf("Apply of a change: %+v, %v", got, err)
	}
}

// TestApplySocketsInChunks applies more than one hold of the lock takes, into a map that is full then.
func TestApplySocketsInChunks(t *testing.T) {
	d := openTest(t)
	size := uint64(d.objects.Namespaces.Size())
	if size < 2*chunkChanges {
		t.Fatalf("the map has %d rows: the test shows nothing", size)
	}
	set := func(from, n uint64) (all []SocketScope) {
		for cookie := from; cookie < from+n; cookie++ {
			all = append(all, podScope(cookie))
		}
		return all
	}
	scopeApplier{d, t}.apply(service.Agent, Result{Added: int(size)}, set(1, size)...)
	scopeApplier{d, t}.apply(service.Agent, Result{Added: 100, Deleted: 100, Unchanged: int(size) - 100},
		set(101, size)...)
	var full *objects.FullError
	got, err := d.Sockets().Apply(t.Context(), service.Agent, set(101, size+1))
	if want := (Result{Unchanged: int(size)}); !errors.As(err, &full) || got != want {
		t.Errorf("Apply of too many = %+v, %v; want %+v", got, err, want)
	}
	scopeApplier{d, t}.apply(service.Agent, Result{Deleted: int(size)})
}

// TestSocketScopesRefused gives each call what cannot be, or is not there.
func TestSocketScopesRefused(t *testing.T) {
	d, ns := openTest(t), testkit.Namespace(t, "host")
	must(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope))(t)
	cookie := cookieOf(t, ns)
	for _, missing := range []struct {
		owner  service.Owner
		cookie uint64
	}{{service.CLI, cookie}, {service.CNI, cookie + 1}} {
		_, err := d.Sockets().Get(t.Context(), missing.owner, missing.cookie)
		wantNotFound(t, err)
		wantNotFound(t, d.Sockets().Delete(t.Context(), missing.owner, missing.cookie))
	}
	for _, bad := range [][]SocketScope{{{}}, {podScope(0)}, {{Cookie: 7}}, {{Cookie: 7, Kind: PodScope + 1}},
		{podScope(7), hostScope(7)}} {
		if got, err := d.Sockets().Apply(t.Context(), service.CNI, bad); err == nil || got != (Result{}) {
			t.Errorf("Apply(%v) = %+v, %v", bad, got, err)
		}
	}
	for _, owner := range []service.Owner{service.NoOwner, service.Lab + 1} {
		_, put := d.Sockets().Put(t.Context(), owner, ns, HostScope)
		_, apply := d.Sockets().Apply(t.Context(), owner, nil)
		if put == nil || apply == nil || d.Sockets().Delete(t.Context(), owner, cookie) == nil {
			t.Errorf("owner %s: Put %v, Apply %v", owner, put, apply)
		}
	}
	equal(t, must(d.Sockets().Put(t.Context(), service.CNI, ns, HostScope))(t), Updated, "Put of another kind")
	want := []SocketScope{{cookie, service.CNI, HostScope}}
	if all, err := d.Sockets().List(t.Context()); err != nil || !slices.Equal(all, want) {
		t.Errorf("List = %v, %v; want %v", all, err, want)
	}
}
