// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestCheckHost takes away what socket translation of a host rests on.
func TestCheckHost(t *testing.T) {
	d, host, path := openTest(t), testkit.Namespace(t, "host"), testkit.Cgroup(t)
	want := func(words ...string) {
		t.Helper()
		var deviation *DeviationError
		err := d.Sockets().Check(service.CLI, host, path)
		if len(words) == 0 && err != nil || len(words) > 0 && !errors.As(err, &deviation) {
			t.Errorf("CheckHost: %v", err)
			return
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("CheckHost: %v; want %q", err, word)
			}
		}
	}
	add := func() {
		t.Helper()
		must(d.Sockets().Attach(t.Context(), path))(t)
		must(d.Sockets().Put(t.Context(), service.CLI, host, HostScope))(t)
	}
	want("not known to the datapath", "lacks the socket programs getpeername4", "connect6")
	add()
	want()
	must(d.Sockets().Put(t.Context(), service.CLI, host, PodScope))(t)
	if _, err := d.Sockets().Put(t.Context(), service.CNI, host, HostScope); err != nil { // not for this owner
		t.Fatal(err)
	}
	want("not known to the datapath")
	add()
	c := must(cgroup.Open(path))(t)
	defer c.Close()
	pinned := must(link.LoadPinnedLink(pins(d, "links", objects.Link{Hook: objects.Hook{Point: objects.AttachCgroup, Program: "connect4"}, ID: c.ID}.String()), nil))(t)
	defer pinned.Close()
	succeed(t, pinned.Detach())
	want("lacks the socket programs connect4")
	add()
	want()
}

// TestService looks services up one by one.
func TestService(t *testing.T) {
	d := openTest(t)
	one, all, none := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("[fd00:96::1]:80"), netip.MustParseAddrPort("10.96.0.1:81")
	stored := []service.Service{
		{Frontend: one, Protocol: service.TCP, Backends: service.Backends(netip.MustParseAddrPort("192.168.10.10:80"))},
		{Frontend: all, Protocol: service.Any, Backends: service.Backends(netip.MustParseAddrPort("[fd00:10::10]:80"))},
	}
	for _, s := range stored {
		must2(d.Services().Put(t.Context(), service.CLI, s))(t)
		got, err := d.Services().Get(t.Context(), s.Key())
		if err != nil || got.ID == 0 || got.Frontend != s.Frontend || got.Protocol != s.Protocol || !slices.Equal(got.Backends, s.Backends) {
			t.Errorf("Get(%s): %v, %v", s, got, err)
		}
	}
	var conflict *ConflictError
	for _, part := range []service.Service{{Frontend: all, Protocol: service.UDP}, {Frontend: one, Protocol: service.Any}} {
		if _, err := d.Services().Get(t.Context(), part.Key()); !errors.As(err, &conflict) {
			t.Errorf("Get(%s): %v", part, err)
		}
	}
	for _, missing := range []service.Service{{Frontend: one, Protocol: service.UDP}, {Frontend: none, Protocol: service.TCP}} {
		_, err := d.Services().Get(t.Context(), missing.Key())
		wantNotFound(t, err)
	}
}

// TestSweep sweeps pods that are gone, two devices of one pod among them, and leaves others.
func TestSweep(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	stays, goes := testkit.Namespace(t, "stays"), testkit.Namespace(t, "goes")
	for _, ns := range []*netns.Namespace{stays, goes} {
		must(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope))(t)
		if _, err := d.Sockets().Put(t.Context(), service.Agent, ns, PodScope); err != nil { // has a sweep of its own
			t.Fatal(err)
		}
	}
	gone := must(goes.Cookie())(t)
	succeed(t, errors.Join(netns.Delete(goes.Name()), goes.Close()))
	second := EndpointSpec{Namespace: n.pods[0], IfName: "second", Host: n.host}
	n.run(t, "-n HOST link add more type veth peer name second netns PODA")
	n.run(t, "-n PODA addr add 192.168.10.99/32 dev second")
	must2(d.Endpoints().Put(t.Context(), second))(t)
	n.run(t, "-n PODA link del second")
	want := func(keep func(uint64) bool, endpoints, pods int) {
		t.Helper()
		succeed(t, errors.Join(d.Endpoints().Sweep(t.Context(), keep), d.Sockets().Sweep(t.Context(), service.CNI, keep)))
		ids := make(map[uint32]bool)
		all := must(d.Endpoints().List(t.Context()))(t)
		for _, e := range all {
			ids[e.ID] = true
		}
		if sockets, err := d.Sockets().List(t.Context()); err != nil || len(ids) != endpoints || len(sockets) != pods+2 {
			t.Errorf("left are %d endpoints and pods %v, %v; want %d and %d", len(ids), sockets, err, endpoints, pods)
		}
	}
	none := func(uint64) bool { return false }
	want(func(uint64) bool { return true }, 3, 2)
	want(func(cookie uint64) bool { return cookie == gone }, 2, 2)
	want(none, 2, 1)
	cookie := must(n.pods[0].Cookie())(t)
	if _, ok, err := d.objects.Namespaces.Get(cookie); err != nil || !ok {
		t.Errorf("a pod whose second device went: %v, %v", ok, err)
	}
	n.run(t, "-n PODA link del eth0")
	want(none, 1, 1)
	if _, ok, err := d.objects.Namespaces.Get(cookie); err != nil || ok {
		t.Error("a pod without devices is known still")
	}
}
