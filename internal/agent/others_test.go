// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestLabelsForOtherOwners has policies of the command line ask for labels of pods that no policy of the cluster names: the agent keeps them.
func TestLabelsForOtherOwners(t *testing.T) {
	testkit.RequireRoot(t)
	d, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	db := policy.Pod{Namespace: "db", Name: "app0", Node: node, Labels: map[string]string{"app": "app0"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	endpoint, _, err := d.Policies().Objects.Endpoints.Get(rows.EncodeAddr(db.Addresses[0]))
	if err != nil {
		t.Fatal(err)
	}
	endpoint.Id = 1
	if err := d.Policies().Objects.Endpoints.Put(rows.EncodeAddr(db.Addresses[0]), endpoint); err != nil {
		t.Fatal(err)
	}
	inNamespace := func(name string) policy.PodSelector {
		return policy.PodSelector{Namespaces: policy.Selector{Requirements: []policy.Requirement{{Key: policy.NamespaceLabel, Operator: "In", Values: []string{name}}}}}
	}
	without := func(key string) []policy.Policy {
		return []policy.Policy{{
			Tier: policy.Namespaced, Namespace: "db", Name: "without", IsolatesIngress: true, Subject: inNamespace("db"),
			Ingress: []policy.Rule{{Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: "DoesNotExist"}}}}}}}},
		}}
	}
	far := policy.Pod{Namespace: "other", Name: "far", Labels: map[string]string{"quarantine": "yes", "app": "x"}, Addresses: []netip.Addr{netip.MustParseAddr("10.200.0.5")}}
	web := policy.Policy{Tier: policy.Namespaced, Namespace: "shop", Name: "web", IsolatesIngress: true}
	cli := policies.Set{Snapshot: policy.Snapshot{Pods: []policy.Pod{db}, Namespaces: []policy.Namespace{{Name: "db"}}}}
	a := New(Options{Node: node, Policies: d.Policies(), State: status.NewTracker(), Log: slog.New(slog.DiscardHandler)})
	a.policies.put(object{"pods", "other", "far"}, fragment{Pods: []policy.Pod{far}})
	a.policies.put(object{"pods", "db", "app0"}, fragment{Pods: []policy.Pod{db}})
	a.policies.put(object{"networkpolicies", "shop", "web"}, fragment{Policies: []policy.Policy{web}})
	for round, key := range []string{"quarantine", "another", "quarantine"} {
		if round == 2 { // the cluster has no policies
			a.policies.put(object{"networkpolicies", "shop", "web"}, fragment{})
		}
		a.policies.changed, cli.Policies = true, without(key)
		if _, err := d.Policies().Apply(t.Context(), service.CLI, cli); err != nil {
			t.Fatal(err)
		}
		if err := a.readOthers(t.Context()); err != nil {
			t.Fatal(err)
		}
		set, _ := a.policies.set()
		if lost, err := a.applyPolicies(t.Context(), set, a.policies.version); lost != nil || err != nil {
			t.Fatal(lost, err)
		}
		now, err := d.Policies().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		_, in, err := policy.Explain(now, policy.Flow{Source: far.Addresses[0], Destination: db.Addresses[0], Protocol: service.TCP, Port: 80})
		if err != nil || in.Allow != (key == "another") {
			t.Errorf("round %d: %v, %v", round, in, err)
		}
	}
}
