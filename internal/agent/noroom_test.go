// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// small has room for some bytes of rules, and counts calls.
type small struct {
	Policies
	room, calls int
	full        objects.FullError
	last        policies.Set
}

func (s *small) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	s.calls++
	bulk := 0
	for _, p := range want.Policies {
		bulk += p.Bulk()
	}
	if bulk > s.room {
		return policies.Result{}, &s.full
	}
	s.last = want
	return policies.Result{}, nil
}

// with returns a NetworkPolicy with as many peers.
func with(namespace, name string, peers int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
	for i := range peers {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Block: &policy.Block{CIDR: block}})
	}
	return p
}

// TestNoRoom takes rules from the namespace with the most of them, whoever has the largest policy, and in few steps.
func TestNoRoom(t *testing.T) {
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 20)}}}
	for i := range 1000 {
		want.Policies = append(want.Policies, with("tenant", fmt.Sprint("p", i), 10))
	}
	rows := &small{room: 5000, full: objects.FullError{Map: "identities", Size: 16}}
	full, lost, err := applyPolicies(t.Context(), rows, "here", want)
	if err != nil || lost == nil || rows.calls > 12 {
		t.Errorf("%d calls, %v: %v", rows.calls, lost, err)
	}
	if len(rows.last.Policies) != 1001 || len(rows.last.Policies[0].Ingress[0].Peers) != 20 || !rows.last.Policies[1000].IsolatesIngress {
		t.Errorf("there are %d policies, the first is %+v", len(rows.last.Policies), rows.last.Policies[0])
	}
	for _, w := range full {
		if w.Namespace != "tenant" {
			t.Errorf("it says %v", w)
		}
	}
}

// TestDocumentsFull blames no policy where pods have filled the documents, and else the namespace that has.
func TestDocumentsFull(t *testing.T) {
	rows := &small{full: objects.FullError{Map: policies.Documents, Size: 16384}}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 1000)}}}
	full, lost, err := applyPolicies(t.Context(), rows, "here", want)
	if none := (*objects.FullError)(nil); !errors.As(err, &none) || lost != nil || full != nil || rows.calls != 1 {
		t.Errorf("%d calls: %v, %v, %v", rows.calls, full, lost, err)
	}
	huge := with("tenant", "huge", 0)
	for i := range 9000 {
		huge.Subject.Pods.Requirements = append(huge.Subject.Pods.Requirements, policy.Requirement{Key: strings.Repeat("x", 60) + fmt.Sprint(i), Operator: "DoesNotExist"})
	}
	rows.room = 100_000
	want.Policies = append(want.Policies, huge, with("tenant", "one", 1))
	full, _, err = applyPolicies(t.Context(), rows, "here", want)
	if err != nil || len(full) != 1 || full[0].Name != "huge" || len(rows.last.Policies[1].Subject.Pods.Requirements) > 0 {
		t.Errorf("%v, %v", full, err)
	}
	if !slices.ContainsFunc(rows.last.Policies[1:], func(p policy.Policy) bool { return len(p.Ingress) > 0 }) {
		t.Error("its small policy has lost its rules too")
	}
}

// TestOverlaps closes the pods of a tenant whose ranges overlap too much for the node, and leaves alone whoever has more ranges.
func TestOverlaps(t *testing.T) {
	nested := with("tenant", "nested", 0)
	for i := range 1000 {
		out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 32)
		block := &policy.Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Except: []netip.Prefix{out}}
		nested.Ingress[0].Peers = append(nested.Ingress[0].Peers, policy.Peer{Block: block})
	}
	want := policies.Set{Snapshot: policy.Snapshot{Policies: []policy.Policy{with("shop", "large", 5000), nested, with("away", "large", 5000)}}}
	for i := range want.Policies {
		want.Policies[i].Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: want.Policies[i].Namespace}
	}
	for _, namespace := range []string{"shop", "tenant"} {
		want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: "starting", Node: "here"})
	}
	rows := &small{room: 1 << 30}
	full, lost, err := applyPolicies(t.Context(), rows, "here", want)
	if err != nil || lost == nil || rows.calls != 1 || len(full) != 1 || full[0].Name != "nested" || !strings.Contains(full[0].Text, "at most 262144") {
		t.Errorf("%d calls, %v: %v, %v", rows.calls, full, lost, err)
	}
	if p := rows.last.Policies[1]; len(p.Ingress) > 0 || !p.IsolatesIngress || len(rows.last.Policies[0].Ingress[0].Peers) != 5000 {
		t.Errorf("there is %+v", p)
	}
	if full, _, err := applyPolicies(t.Context(), rows, "elsewhere", want); err != nil || full != nil {
		t.Errorf("a node without their pods: %v, %v", full, err)
	}
}
