// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// TestLabelsForOtherOwners has policies of the command line ask for labels of pods that no policy of the cluster names: the agent keeps them.
func TestLabelsForOtherOwners(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "db", 1)
	without := func(key string) []policy.Policy {
		return []policy.Policy{{
			Tier: policy.Namespaced, Namespace: "db", Name: "without", IsolatesIngress: true, Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "db")},
			Ingress: []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: "DoesNotExist"}}}}}}}},
		}}
	}
	far := policy.Pod{Namespace: "other", Name: "far", Labels: map[string]string{"quarantine": "yes", "app": "x"}, Addresses: []netip.Addr{netip.MustParseAddr("10.200.0.5")}}
	cli := want.Set
	a := &Agent{Options: Options{Policies: want.datapath.Policies()}, policies: newPolicySet(want.Pods[0].Node)}
	a.policies.of[object{"pods", "other", "far"}] = fragment{Pods: []policy.Pod{far}}
	a.policies.of[object{"pods", "db", "app0"}] = fragment{Pods: want.Pods}
	a.policies.of[object{"networkpolicies", "shop", "web"}] = fragment{Policies: []policy.Policy{with("shop", "web", 1)}}
	for round, key := range []string{"quarantine", "another", "quarantine"} {
		if round == 2 { // the cluster has no policies
			delete(a.policies.of, object{"networkpolicies", "shop", "web"})
		}
		a.policies.changed, cli.Policies = true, without(key)
		if _, err := want.datapath.Policies().Apply(t.Context(), service.CLI, cli); err != nil {
			t.Fatal(err)
		}
		if err := a.readOthers(t.Context()); err != nil {
			t.Fatal(err)
		}
		set, _ := a.policies.set()
		if _, _, err := a.stripped.apply(t.Context(), a.Policies, want.Pods[0].Node, set); err != nil {
			t.Fatal(err)
		}
		now, err := want.datapath.Policies().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		_, in, err := policy.Explain(now, policy.Flow{Source: far.Addresses[0], Destination: want.Pods[0].Addresses[0], Protocol: service.TCP, Port: 80})
		if err != nil || in.Allow != (key == "another") {
			t.Errorf("round %d: %v, %v", round, in, err)
		}
	}
}

// TestOthersLabelsFillDocuments has a policy of the command line name the labels that fill the documents. They are not to be forgotten: the search ends.
func TestOthersLabelsFillDocuments(t *testing.T) {
	want := newOnNode(t)
	want.add(t, "shop", 1)
	random := rand.New(rand.NewPCG(1, 2))
	cli := policy.Policy{Tier: policy.Namespaced, Namespace: "tenant", Name: "names", IsolatesIngress: true, Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "tenant")}}
	for k := range 60 {
		cli.Subject.Pods.Requirements = append(cli.Subject.Pods.Requirements, policy.Requirement{Key: fmt.Sprint("k", k), Operator: "Exists"})
	}
	for n := range 4500 {
		labels := map[string]string{}
		for k := range 60 {
			labels[fmt.Sprint("k", k)] = randomText(random, 63)
		}
		want.Pods = append(want.Pods, policy.Pod{Namespace: fmt.Sprint("t", n%20), Name: fmt.Sprint("f", n), Labels: labels, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})}})
	}
	cli.Subject.Namespaces = policy.Selector{}
	s := &stripped{others: []policy.Policy{cli}}
	to := &counting{Policies: want.datapath.Policies()}
	full, lost, err := s.apply(t.Context(), to, want.Pods[0].Node, want.Set)
	if err == nil || lost != nil || to.calls > 5 {
		t.Errorf("%d calls, %d policies, %v, %v", to.calls, len(full), lost, err)
	}
}
