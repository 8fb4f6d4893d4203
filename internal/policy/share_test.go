// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"reflect"
	"testing"

	"mustang/internal/testkit"
)

// TestShare gives equal labels of objects one map, and changes none.
func TestShare(t *testing.T) {
	web := func() map[string]string { return map[string]string{"app": "web", "tier": "front"} }
	selects := func(labels map[string]string) PodSelector { return PodSelector{Pods: Selector{Labels: labels}} }
	peer := selects(web())
	of := func() Snapshot {
		return Snapshot{
			Nodes: []Node{{Labels: web()}}, Namespaces: []Namespace{{Labels: map[string]string{}}}, Pods: []Pod{{Labels: web()},
				{Labels: map[string]string{"app": "web"}}},
			Policies: []Policy{{Subject: selects(web()),
				Egress: []Rule{{Peers: []Peer{{Pods: &peer}, {Nodes: &Selector{Labels: web()}}, {Block: &Block{}}}}}}},
		}
	}
	first, second := of(), of()
	shared := map[Digest]map[string]string{}
	first.Share(shared)
	second.Share(shared)
	testkit.Check(t, reflect.DeepEqual(second, of()) && len(shared) == 2,
		"of %d different labels there is %+v", len(shared), second)
	at := func(labels map[string]string) uintptr { return reflect.ValueOf(labels).Pointer() }
	peers := second.Policies[0].Egress[0].Peers
	for _, labels := range []map[string]string{second.Nodes[0].Labels, second.Pods[0].Labels,
		second.Policies[0].Subject.Pods.Labels, peers[0].Pods.Pods.Labels, peers[1].Nodes.Labels} {
		testkit.Check(t, at(labels) == at(first.Pods[0].Labels), "equal labels are there twice")
	}
}
