// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/policy"
	"mustang/internal/policy/policytest"
	"mustang/internal/service"
)

// TestTogetherTwice isolates the pods of many namespaces by one policy, and within a minute those of more: none is free meanwhile. Once the list that takes
// the room has gone, all are tried again.
func TestTogetherTwice(t *testing.T) {
	want := newOnNode(t)
	want.Policies = append(want.Policies, denyList(4000))
	s, to := &Shedder{}, &counting{Policies: want.datapath.Policies()}
	for _, name := range []string{"shop", "team"} {
		for i := range 60 {
			want.add(t, fmt.Sprint(name, i), 1)
		}
		to.calls = 0
		full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
		if err != nil || lost == nil || len(full) < 60 || to.calls > 3 {
			t.Fatalf("%d calls, %d policies, %v, %v", to.calls, len(full), lost, err)
		}
		for _, pod := range want.Pods {
			if stranger, _ := want.enters(t, pod); stranger {
				t.Errorf("a stranger enters %s/%s", pod.Namespace, pod.Name)
			}
		}
	}
	want.Policies = want.Policies[1:]
	full, _, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
	if err != nil || len(full) < 120 || !s.Retry {
		t.Errorf("the list has gone: %d policies, %v, later %t", len(full), err, s.Retry)
	}
	s.tried = time.Now().Add(-Hold)
	if full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set); err != nil || lost != nil || len(full) > 0 {
		t.Errorf("after a minute: %d policies, %v, %v", len(full), lost, err)
	}
}

// TestClusterListAlone has a list that is too long by itself, and NetworkPolicies of pods elsewhere: nobody loses rules for it, in few calls.
func TestClusterListAlone(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 3)
	want.Policies = nil
	for n := range 10 {
		for k := range 4 {
			p := with(fmt.Sprint("far", n), fmt.Sprint("p", k), 3)
			p.Subject.Namespaces = selects(policy.NamespaceLabel, p.Namespace)
			want.Policies = append(want.Policies, p)
		}
	}
	want.Policies = append(want.Policies, policy.Policy{Tier: policy.Admin, Name: "threats", Ingress: []policy.Rule{{Action: policy.Deny, Peers: policytest.Addresses("", "", 0, 58_000).Ingress[0].Peers}}})
	to := &counting{Policies: want.datapath.Policies()}
	var s Shedder
	for round := range 3 {
		to.calls = 0
		full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
		if err == nil || lost != nil || len(full) == 0 || full[len(full)-1].Name != "threats" || to.calls > 2-round%2 {
			t.Errorf("round %d: %d calls, %v, %v, %v", round, to.calls, full, lost, err)
		}
		if round == 1 { // another list
			want.Policies[len(want.Policies)-1].Ingress[0].Peers = policytest.Addresses("", "", 0, 58_001).Ingress[0].Peers
		}
	}
}

// TestClusterPortsTimesRuleSets has a ClusterNetworkPolicy with many ports, of which each rule set has a table: as many namespaces make room as have to, in few steps.
func TestClusterPortsTimesRuleSets(t *testing.T) {
	for _, c := range []struct{ namespaces, pods, ports int }{{60, 1, 1500}, {35, 3, 600}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			want := newOnNode(t)
			for i := range c.namespaces {
				want.add(t, fmt.Sprint("shop", i), c.pods)
			}
			deny := policy.Rule{Action: policy.Deny}
			for i := range c.ports {
				deny.Ports = append(deny.Ports, policy.Port{Protocol: service.TCP, First: uint16(10000 + 2*i), Last: uint16(10000 + 2*i)})
			}
			want.Policies = append(want.Policies, policy.Policy{Tier: policy.Admin, Name: "ports", Ingress: []policy.Rule{deny}})
			to := &counting{Policies: want.datapath.Policies()}
			if _, lost, err := new(Shedder).Apply(t.Context(), to, want.Pods[0].Node, want.Set); err != nil || lost == nil || to.calls > 4 {
				t.Errorf("%d calls, %v, %v", to.calls, lost, err)
			}
		})
	}
}

// TestForgetKeepsOthersLabels forgets the labels of a namespace, but for those that policies of the command line name, as subjects or as peers.
func TestForgetKeepsOthersLabels(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 1)
	want.add(t, "tenant", 1)
	shop, tenant := want.Pods[0], want.Pods[1]
	want.Policies = want.Policies[:1]
	want.Policies[0].Ingress = []policy.Rule{{}} // anyone
	for n := range 30 {
		p := policy.Policy{Tier: policy.Namespaced, Namespace: fmt.Sprint("t", n), Name: "ask", IsolatesIngress: true, Ingress: make([]policy.Rule, 1)}
		p.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, p.Namespace)}
		for i := range 60 {
			p.Ingress[0].Peers = append(p.Ingress[0].Peers, policy.Peer{Pods: &policy.PodSelector{Pods: selects(fmt.Sprint("k", i), "x")}})
		}
		want.Policies = append(want.Policies, p)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 4000 {
		labels := map[string]string{}
		for k := range 60 {
			labels[fmt.Sprint("k", k)] = randomText(random, 63)
		}
		want.Pods = append(want.Pods, policy.Pod{Namespace: "tenant", Name: fmt.Sprint("f", n), Node: "far", Labels: labels, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})}})
	}
	cli := want.Set
	cli.Pods = nil
	cli.Policies = []policy.Policy{
		{
			Tier: policy.Namespaced, Namespace: "tenant", Name: "closed", IsolatesIngress: true,
			Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "tenant"), Pods: selects("app", "app0")},
		},
		{
			Tier: policy.Admin, Name: "closed", Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "shop")},
			Ingress: []policy.Rule{{Action: policy.Deny, Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: selects("app", "app0")}}}}},
		},
	}
	if _, err := want.datapath.Policies().Apply(t.Context(), service.CLI, cli); err != nil {
		t.Fatal(err)
	}
	s := &Shedder{Others: cli.Policies}
	for round := range 2 {
		want.Previous = append(s.Last, s.Others...)
		if _, lost, err := s.Apply(t.Context(), want.datapath.Policies(), shop.Node, want.Set); err != nil || lost == nil || s.unknown["tenant"] == "" {
			t.Fatalf("round %d: %v, %v, unknown are %v", round, lost, err, s.unknown)
		}
		now, err := want.datapath.Policies().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, flow := range []policy.Flow{
			{Source: netip.MustParseAddr("192.0.2.1"), Destination: tenant.Addresses[0], Protocol: service.TCP, Port: 80},
			{Source: tenant.Addresses[0], Destination: shop.Addresses[0], Protocol: service.TCP, Port: 80},
		} {
			if _, in, err := policy.Explain(now, flow); err != nil || in.Allow {
				t.Errorf("round %d: %v: %v, %v", round, flow, in, err)
			}
		}
	}
	want.Pods = slices.Clone(want.Pods)
	for i := range want.Pods[2:] {
		want.Pods[2+i].Labels = nil
	}
	if _, _, err := s.Apply(t.Context(), want.datapath.Policies(), shop.Node, want.Set); err != nil || !s.Retry {
		t.Errorf("the labels are few by now: %v, later %t", err, s.Retry)
	}
}

// TestForgottenIsTogether isolates the pods of many namespaces by one policy after the labels of one were forgotten, by which its policies select pods: its pods are
// isolated too.
func TestForgottenIsTogether(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "tenant", 1)
	want.Policies[0].Subject.Pods = selects("app", "app0")
	s := &Shedder{tried: time.Now(), of: map[string]map[policy.Digest]string{}, unknown: map[string]string{"tenant": "its labels take most"}}
	want.Policies = append(want.Policies, denyList(4000))
	for i := range 60 {
		want.add(t, fmt.Sprint("shop", i), 1)
	}
	full, lost, err := s.Apply(t.Context(), want.datapath.Policies(), want.Pods[0].Node, want.Set)
	if err != nil || lost == nil || !s.together {
		t.Fatalf("%d policies, %v, %v, together %t", len(full), lost, err, s.together)
	}
	for _, pod := range want.Pods {
		if stranger, _ := want.enters(t, pod); stranger {
			t.Errorf("a stranger enters %s/%s", pod.Namespace, pod.Name)
		}
	}
}
