// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
	"mustang/internal/service"
)

// losers returns how many policies of each namespace have no rules in force.
func (want *onNode) losers(t *testing.T) map[string]int {
	t.Helper()
	full, lost, err := new(Shedder).Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
	if err != nil {
		t.Fatal(lost, err)
	}
	by := map[string]int{}
	for _, w := range full {
		by[w.Namespace]++
	}
	return by
}

// inBlock is a ClusterNetworkPolicy with a block that has all ranges of package policytest.
func inBlock() policy.Policy {
	deny := policy.Rule{Action: policy.Deny, Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}}}}
	return policy.Policy{Tier: policy.Admin, Name: "list", Ingress: []policy.Rule{deny}}
}

// TestRepeatedRangesInBlock has a namespace repeat its ranges in the policies of all of its pods: they count once, and somebody with more ranges loses.
func TestRepeatedRangesInBlock(t *testing.T) {
	want := newOnNode(t)
	port := func(n int) []policy.Port {
		return []policy.Port{{Protocol: service.TCP, First: uint16(1000 + 2*n), Last: uint16(1000 + 2*n)}}
	}
	want.add(t, "shop", 40)
	for i := range want.Policies {
		want.Policies[i].Ingress = policytest.Addresses("shop", "x", 0, 200).Ingress
		want.Policies[i].Ingress[0].Ports = port(i)
	}
	for i := range 50 {
		want.add(t, fmt.Sprint("team", i), 1)
	}
	for i := range want.Policies[40:] {
		want.Policies[40+i].Ingress[0].Ports = port(1000 + i)
	}
	want.add(t, "culprit", 1)
	want.Policies[len(want.Policies)-1].Ingress = policytest.Addresses("culprit", "x", 8, 4000).Ingress
	want.Policies = append(want.Policies, inBlock())
	if by := want.losers(t); len(by) != 1 || by["culprit"] == 0 {
		t.Errorf("there lose %v", by)
	}
}

// TestBlockForOneNamespace has a block of the cluster for the pods of one namespace: rule sets of others do not meet the ranges in it, and who has some
// is not to blame.
func TestBlockForOneNamespace(t *testing.T) {
	want := newOnNode(t)
	for i := range 40 {
		want.add(t, fmt.Sprint("team", i), 4)
	}
	want.add(t, "listed", 1)
	want.Policies[len(want.Policies)-1].Ingress = policytest.Addresses("listed", "x", 0, 3000).Ingress
	n := len(want.Policies)
	want.add(t, "culprit", 30)
	for i := range 30 {
		p := &want.Policies[n+i]
		p.Ingress[0].Ports = []policy.Port{{Protocol: service.TCP, First: uint16(9000 + 2*i), Last: uint16(9000 + 2*i)}}
		p.Ingress[0].Peers = []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}}
		if i == 0 {
			p.Ingress = append(p.Ingress, policytest.Addresses("culprit", "x", 8, 6000).Ingress...)
		}
	}
	want.add(t, "dmz", 1)
	list := inBlock()
	list.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "dmz")}
	want.Policies = append(want.Policies, list)
	if by := want.losers(t); len(by) != 1 || by["culprit"] == 0 {
		t.Errorf("there lose %v", by)
	}
}

// full says of sets that there is no room for them.
type full struct {
	Policies
	of func(policies.Set) string // the map; "": there is room
}

func (f full) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	if name := f.of(want); name != "" {
		return policies.Result{}, &objects.FullError{Map: name, Size: 16384}
	}
	return policies.Result{}, nil
}

// TestSearchAfterVainOne has a search in vain, room for all then, and somebody who takes too much within a minute: that one is found.
func TestSearchAfterVainOne(t *testing.T) {
	filled := true
	to := full{of: func(want policies.Set) string {
		bulk := 0
		for _, p := range want.Policies {
			bulk += p.Bulk()
		}
		switch {
		case filled:
			return policies.Documents
		case bulk > 5000:
			return "identities"
		}
		return ""
	}}
	var s Shedder
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "web", 2)}}}
	if _, _, err := s.Apply(t.Context(), to, "here", want); err == nil {
		t.Error("documents that are full of pods have room")
	}
	filled = false
	if _, lost, err := s.Apply(t.Context(), to, "here", want); err != nil || lost != nil {
		t.Error(lost, err)
	}
	want.Policies = append(want.Policies, with("tenant", "huge", 2000), with("shop", "new", 1))
	if _, lost, err := s.Apply(t.Context(), to, "here", want); err != nil || lost == nil {
		t.Error(lost, err)
	}
}

// TestNodesTakeRoom has nodes take the room for rules, and go within a minute of the second search: all are tried again.
func TestNodesTakeRoom(t *testing.T) {
	to := full{of: func(want policies.Set) string {
		if len(want.Nodes) > 10 && want.Policies[0].Bulk() > 100 {
			return "identities"
		}
		return ""
	}}
	var s Shedder
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "web", 200)}}}
	for i := range 20 {
		want.Nodes = append(want.Nodes, policy.Node{Name: fmt.Sprint("n", i)})
	}
	for range 2 {
		s.tried = time.Now().Add(-2 * Hold)
		if _, lost, err := s.Apply(t.Context(), to, "here", want); err != nil || lost == nil {
			t.Fatal(lost, err)
		}
	}
	want.Nodes = nil
	if _, lost, err := s.Apply(t.Context(), to, "here", want); err != nil || lost == nil || !s.Retry {
		t.Errorf("the nodes have gone: %v, %v, later %t", lost, err, s.Retry)
	}
}
