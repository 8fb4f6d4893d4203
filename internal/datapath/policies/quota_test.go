// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestNamespaceIsAboveItsQuota writes nothing where one namespace has more ranges than an eighth of the map, and takes
// what its policies say without rules.
func TestNamespaceIsAboveItsQuota(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	join := func(map[netip.Addr]policy.Sets) error { return nil }
	if _, err := p.Admit(1, []netip.Addr{address4(0)}, &policy.Pod{Namespace: "tenant", Name: "p"}, join); err != nil {
		t.Fatal(err)
	}
	tenant := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "list", IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
	tenant.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: "tenant"}
	list := tenant
	for i := range 9000 {
		at := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		list.Ingress[0].Peers = append(list.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: at}})
	}
	shop := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "deny", IsolatesIngress: true}
	want := Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{shop, list}}, Quota: 8}
	_, err := p.Apply(t.Context(), service.Agent, want)
	var quota *policy.QuotaError
	if !errors.As(err, &quota) || len(quota.Over) != 1 || quota.Over[0].Namespace != "tenant" || quota.Over[0].What != "ranges of addresses" {
		t.Error(err)
	}
	if listed, err := p.List(); err != nil || len(listed) > 0 {
		t.Errorf("there are %v, %v", listed, err)
	}
	want.Policies = slices.Clone(want.Policies)
	want.Policies[1].Ingress = nil
	if _, err := p.Apply(t.Context(), service.Agent, want); err != nil {
		t.Errorf("without rules: %v", err)
	}
}

// TestFullNodeKeepsWhatIsInForce has eight namespaces with lists below their quotas fill a map. A ninth one has no room: nothing changes.
func TestFullNodeKeepsWhatIsInForce(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	join := func(map[netip.Addr]policy.Sets) error { return nil }
	want := Set{Quota: 8}
	for n := range 9 {
		id, namespace := uint32(n+1), fmt.Sprint("n", n)
		if err := p.Objects.Endpoints.Put(rows.EncodeAddr(address4(n)), objects.Endpoint{Id: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Admit(id, []netip.Addr{address4(n)}, &policy.Pod{Namespace: namespace, Name: "p"}, join); err != nil {
			t.Fatal(err)
		}
		list := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: "list", IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
		list.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: namespace}
		for i := range 7000 {
			at := netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(n), 0, byte(i >> 8), byte(i)}), 32)
			list.Ingress[0].Peers = append(list.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: at}})
		}
		want.Policies = append(want.Policies, list)
	}
	ninth := want
	want.Policies = want.Policies[:8:8]
	if _, err := p.Apply(t.Context(), service.Agent, want); err != nil {
		t.Fatal(err)
	}
	var full *objects.FullError
	if _, err := p.Apply(t.Context(), service.Agent, ninth); !errors.As(err, &full) || full.Map != "identities" {
		t.Errorf("nine namespaces: %v", err)
	}
	listed, err := p.List()
	if pending, errPending := p.Pending(); err != nil || errPending != nil || pending || len(listed) != 8 {
		t.Errorf("there are %d policies, pending %t, %v, %v", len(listed), pending, err, errPending)
	}
}
