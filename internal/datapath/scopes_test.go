// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestOwnersShareScopes registers namespaces for two owners, which share some and meet an endpoint in another. A row
// has the flags that follow from all owners, and goes with the last one.
func TestOwnersShareScopes(t *testing.T) {
	const h, p, endpoint = objects.NamespaceHost, objects.NamespaceSockets, objects.NamespacePod
	const cni, cli = service.CNI, service.CLI
	d := openTest(t)
	succeed(t, enableSockets(d.objects, 3))
	for _, step := range []struct {
		scope SocketScope // of kind 0: it is deleted
		had   ScopeKind
		flags uint32
	}{
		{SocketScope{1, cni, HostScope}, 0, h},
		{SocketScope{2, cni, PodScope}, 0, p},
		{SocketScope{3, cni, PodScope}, 0, p | endpoint},
		{SocketScope{1, cli, HostScope}, 0, h},
		{SocketScope{2, cli, HostScope}, 0, h | p},
		{SocketScope{2, cli, HostScope}, HostScope, h | p},
		{SocketScope{1, cni, PodScope}, HostScope, h | p},
		{SocketScope{2, cni, 0}, PodScope, h},
		{SocketScope{1, cni, 0}, PodScope, h},
		{SocketScope{3, cni, 0}, PodScope, endpoint},
		{SocketScope{3, cni, 0}, 0, endpoint},
	} {
		had := must(d.Sockets().register(t.Context(), step.scope))(t)
		equal(t, had, step.had, "%+v: kind before", step.scope)
		row, _, err := d.objects.Namespaces.Get(step.scope.Cookie)
		failIf(t, err != nil || row.Flags != step.flags, "%+v: flags %v, %v; want %v", step.scope, row.Flags, err, step.flags)
	}
	succeed(t, disableSockets(d.objects, 1, nil)) // no endpoint there: the registration stays
	want := []SocketScope{{1, cli, HostScope}, {2, cli, HostScope}}
	if all, err := d.Sockets().List(t.Context()); err != nil || !slices.Equal(all, want) {
		t.Errorf("List = %v, %v; want %v", all, err, want)
	}
	succeed(t, disableSockets(d.objects, 3, nil))
	succeed(t, d.Sockets().DeleteAll(t.Context(), cli))
	rows, err := d.objects.Namespaces.Rows()
	failIf(t, err != nil || len(rows) != 0, "rows %v, %v; want none", rows, err)
}

// TestScopesFull registers as many namespaces as the map takes, and one more.
func TestScopesFull(t *testing.T) {
	d := openTest(t)
	size := uint64(d.objects.Namespaces.Size())
	for cookie := range size {
		must(d.Sockets().register(t.Context(), SocketScope{cookie + 1, service.Agent, PodScope}))(t)
	}
	_, err := d.Sockets().register(t.Context(), SocketScope{size + 1, service.Agent, PodScope})
	failsAs[*objects.FullError](t, err)
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
	for _, owner := range []service.Owner{service.NoOwner, service.Lab + 1} {
		_, put := d.Sockets().Put(t.Context(), owner, ns, HostScope)
		failIf(t, put == nil || d.Sockets().Delete(t.Context(), owner, cookie) == nil, "owner %s: Put %v", owner, put)
	}
	failIf(t, errOf(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope+1)) == nil, "a kind that does not exist")
	equal(t, must(d.Sockets().Put(t.Context(), service.CNI, ns, HostScope))(t), Updated, "Put of another kind")
	want := []SocketScope{{cookie, service.CNI, HostScope}}
	all, err := d.Sockets().List(t.Context())
	testkit.Check(t, err == nil && slices.Equal(all, want), "List = %v, %v; want %v", all, err, want)
}
