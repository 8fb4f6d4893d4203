// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"mustang/internal/policy"
)

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
	s := &Shedder{Others: []policy.Policy{cli}}
	to := &counting{Policies: want.datapath.Policies()}
	full, lost, err := s.Apply(t.Context(), to, want.Pods[0].Node, want.Set)
	if err == nil || lost != nil || to.calls > 5 {
		t.Errorf("%d calls, %d policies, %v, %v", to.calls, len(full), lost, err)
	}
}
