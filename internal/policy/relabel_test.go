// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestRelabelHasNoGap relabels a pod of this node: one ClusterNetworkPolicy denies it a peer before, another one with
// other selectors after. The peer does not reach it between two writes, though only the second distinguishes some
// peers.
func TestRelabelHasNoGap(t *testing.T) {
	with := func(k, v string) Selector { return Selector{Labels: map[string]string{k: v}} }
	deny := func(name string, subject Selector, peer Peer) Policy {
		return Policy{Tier: Admin, Name: name, Subject: PodSelector{Pods: subject},
			Ingress: []Rule{{Action: Deny, Peers: []Peer{peer}}}}
	}
	own, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for name, second := range map[string]Peer{
		"namespace": {Pods: &PodSelector{Namespaces: with(NamespaceLabel, "m")}},
		"label":     {Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{{Key: "app", Operator: "Exists"}}}}},
		"range":     {Block: &Block{CIDR: netip.MustParsePrefix("10.0.0.2/31")}},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := func(role string) Snapshot {
				return Snapshot{Node: "here", Policies: []Policy{
					deny("one", with("role", "1"), Peer{Pods: &PodSelector{Pods: with("app", "x")}}),
					deny("two", with("role", "2"), second),
				}, Pods: []Pod{
					{Namespace: "n", Name: "own", Node: "here", Labels: map[string]string{"role": role}, Addresses: []netip.Addr{own}},
					{Namespace: "m", Name: "peer", Node: "far", Labels: map[string]string{"app": "x"}, Addresses: []netip.Addr{peer}},
				}}
			}
			before := snapshot("1")
			rows := testkit.Must(Compile(before, Rows{}))(t)
			writes := 0
			check := func() {
				t.Helper()
				_, d := rows.lookup(Flow{Source: peer, Destination: own, Protocol: service.TCP, Port: 80}, nil)
				testkit.Check(t, !d.Allow, "after %d writes the peer reaches the pod: %v", writes, d)
				writes++
			}
			check()
			for _, role := range []string{"2", "1"} {
				now := snapshot(role)
				now.Previous = &before
				follow(t, &rows, now, check)
				before = snapshot(role)
			}
		})
	}
}
