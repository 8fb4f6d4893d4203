// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// selecting returns a policy of a namespace with a number of rules that each select all pods, and of which one tells these apart.
func selecting(namespace string, rules int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: "all", IsolatesIngress: true}
	p.Subject.Namespaces.Labels = map[string]string{policy.NamespaceLabel: namespace}
	for n := range rules {
		none := policy.Requirement{Key: "app", Operator: "NotIn", Values: []string{fmt.Sprint("none", n)}}
		if n == 0 {
			none = policy.Requirement{Key: "app", Operator: "In"}
			for i := range 3000 {
				none.Values = append(none.Values, fmt.Sprint(i))
			}
			none.Sort()
		}
		p.Ingress = append(p.Ingress, policy.Rule{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Pods: policy.Selector{Requirements: []policy.Requirement{none}}}}}})
	}
	return p
}

// TestJoiningIsTooMuchWork lets a pod that joins bring the work of a node over what it may be: it joins, a change that adds to it is refused
// and leaves nothing behind, a killed command is completed, and policies can be deleted.
func TestJoiningIsTooMuchWork(t *testing.T) {
	testkit.RequireRoot(t)
	p := openPods(t)
	var want Set
	for i := range 3000 {
		at := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		want.Pods = append(want.Pods, policy.Pod{Namespace: "away", Name: fmt.Sprint(i), Labels: map[string]string{"app": fmt.Sprint(i)}, Addresses: []netip.Addr{at}})
	}
	for i := range pods {
		want.Policies = append(want.Policies, selecting(fmt.Sprint("n", i), 240))
	}
	for i := range pods {
		if i == pods-1 {
			if _, err := p.Apply(t.Context(), service.Agent, want); err != nil {
				t.Fatal(err)
			}
		}
		join := func(map[netip.Addr]policy.Sets) error { return nil }
		if _, err := p.Admit(uint32(i+1), []netip.Addr{address4(i)}, &policy.Pod{Namespace: fmt.Sprint("n", i), Name: "p"}, join); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
	}
	more := want
	more.Policies = append(more.Policies[:pods:pods], policy.Policy{Tier: policy.Namespaced, Namespace: "n0", Name: "more", IsolatesIngress: true, Subject: want.Policies[0].Subject})
	var work *policy.LimitError
	if _, err := p.Apply(t.Context(), service.Agent, more); !errors.As(err, &work) {
		t.Errorf("more policies: %v", err)
	}
	if pending, err := p.Pending(); pending || err != nil {
		t.Errorf("pending %v, %v", pending, err)
	}
	if err := p.mark(documents{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(t.Context(), service.Agent, want); err != nil {
		t.Errorf("the same policies after a killed command: %v", err)
	}
	if _, err := p.Delete(t.Context(), service.Agent, func(q policy.Policy) bool { return q.Namespace == "n1" }); err != nil {
		t.Errorf("delete: %v", err)
	}
}
