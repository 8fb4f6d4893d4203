// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestLinkLocal has pods with a link-local address of their own, with one that two have, with one that the node has, and with one that a document gives
// another pod: the first is known by it.
func TestLinkLocal(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	own, both, nodes, far := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2"), netip.MustParseAddr("fe80::3"), netip.MustParseAddr("fe80::4")
	p.Node = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1"), nodes}, nil }
	for i, local := range []netip.Addr{own, both, both, nodes, far} {
		sender := objects.Sender{Endpoint: uint32(i + 1), LinkLocal: rows.EncodeAddr(local), Pod: rows.EncodeAddr(address4(i))}
		if err := p.Objects.Senders.Put(objects.SenderKey{Ifindex: uint32(i + 10)}, sender); err != nil {
			t.Fatal(err)
		}
	}
	said := policy.Snapshot{Policies: []policy.Policy{selecting("default", 1)}, Pods: []policy.Pod{{Namespace: "default", Name: "far", Addresses: []netip.Addr{far}}}}
	if _, err := p.Apply(t.Context(), service.CLI, Set{Snapshot: said}); err != nil {
		t.Fatal(err)
	}
	docs, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.snapshot(docs, docs.now)
	if err != nil {
		t.Fatal(err)
	}
	of := map[netip.Addr][]string{}
	for _, pod := range s.Pods {
		for _, a := range pod.Addresses {
			of[a] = append(of[a], pod.Name)
		}
	}
	first := of[address4(0)]
	if !slices.Equal(of[own], first) || len(first) != 1 || of[both] != nil || of[nodes] != nil || !slices.Equal(of[far], []string{"far"}) {
		t.Errorf("%v", of)
	}
}
