// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mustang/internal/datapath"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// onNode adds pods of a namespace to what is wanted, which are this node's, and a policy for each that lets all pods of the cluster in.
func onNode(t *testing.T, p *datapath.Datapath, want *policies.Set, namespace string, pods int) {
	t.Helper()
	node, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		n := len(want.Pods) + 1
		at := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		row, _, err := p.Policies().Objects.Endpoints.Get(rows.EncodeAddr(at))
		if err != nil {
			t.Fatal(err)
		}
		row.Id = uint32(n)
		if err := p.Policies().Objects.Endpoints.Put(rows.EncodeAddr(at), row); err != nil {
			t.Fatal(err)
		}
		app := fmt.Sprint("app", i)
		want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: app, Node: node, Labels: map[string]string{"app": app}, Addresses: []netip.Addr{at}})
		want.Policies = append(want.Policies, policy.Policy{
			Tier: policy.Namespaced, Namespace: namespace, Name: app, IsolatesIngress: true,
			Subject: policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, namespace), Pods: selects("app", app)},
			Ingress: []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{}}}, Ports: []policy.Port{{Protocol: service.TCP, First: 8080, Last: 8080}}}},
		})
	}
}

// TestLabelsOfOthers has a tenant name a label that tells 9,000 pods of the cluster apart. Where it only asks for some in its subject, nothing changes
// for others. Where its rules tell them apart on a node with many policies of others, it is the tenant that loses rules.
func TestLabelsOfOthers(t *testing.T) {
	testkit.RequireRoot(t)
	p, err := datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	const label, far = "statefulset.kubernetes.io/pod-name", 9000
	var want policies.Set
	onNode(t, p, &want, "shop", 32)
	onNode(t, p, &want, "tenant", 1)
	evil := want.Policies[len(want.Policies)-1]
	want.Policies = want.Policies[:len(want.Policies)-1]
	var names []string
	for i := range far {
		name := fmt.Sprint("p", i)
		names = append(names, name)
		want.Pods = append(want.Pods, policy.Pod{
			Namespace: fmt.Sprint("n", i%100), Name: name, Node: "far", Labels: map[string]string{"app": fmt.Sprint("far", i%300), label: name},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 100, byte(i / 250), byte(i%250 + 1)})},
		})
	}
	apply := func(policies ...policy.Policy) []kube.Warning {
		t.Helper()
		now := want
		now.Policies = append(now.Policies[:len(now.Policies):len(now.Policies)], policies...)
		now.Trim(want.Pods[0].Node)
		full, _, err := applyPolicies(t.Context(), p.Policies(), want.Pods[0].Node, now)
		if err != nil {
			t.Fatal(err)
		}
		return full
	}
	apply()
	elsewhere := evil
	elsewhere.Namespace, elsewhere.Subject = "nowhere", policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "nowhere"), Pods: selects(label, "nobody")}
	if full := apply(elsewhere); len(full) != 0 {
		t.Errorf("a subject that is not here: %d policies have no rules in force, the first is %+v", len(full), full[0])
	}
	slices.Sort(names)
	evil.Ingress = []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{
		Requirements: []policy.Requirement{{Key: label, Operator: "In", Values: names}},
	}}}}}}
	for round := range 2 {
		if full := apply(evil); len(full) != 1 || full[0].Namespace != "tenant" {
			t.Errorf("round %d: without rules in force: %d: %+v", round, len(full), full)
		}
	}
}
