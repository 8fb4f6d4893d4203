// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// fewLabels has room for so many bytes of labels of pods.
type fewLabels struct {
	Policies
	most int
}

func (f fewLabels) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	n := 0
	for _, p := range want.Pods {
		for k, v := range p.Labels {
			n += len(k) + len(v)
		}
	}
	if n > f.most {
		return policies.Result{}, &objects.FullError{Map: policies.Documents, Size: uint32(2 * f.most / policies.DocumentPiece)}
	}
	return policies.Result{}, nil
}

// TestLabelsThatOneNames has pods of many namespaces with labels that the rules of one namespace alone name, and a label that all name: the one loses its rules, and no
// namespace its labels. As a subject, which is of its own pods, it takes no labels of others.
func TestLabelsThatOneNames(t *testing.T) {
	keys := []string{"controller-uid", "job-name", "workflow-id"}
	for _, subject := range []bool{false, true} {
		var want policies.Set
		for i := range 10 {
			namespace := fmt.Sprint("team", i)
			p := with(namespace, "app", 0)
			p.Subject = policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, namespace)}
			p.Ingress[0].Peers = []policy.Peer{{Pods: &policy.PodSelector{Pods: selects("app", "a")}}}
			want.Policies = append(want.Policies, p)
			for k := range 100 {
				labels := map[string]string{"app": "a"}
				for _, key := range keys {
					labels[key] = fmt.Sprintf("%040d", 100*i+k)
				}
				want.Pods = append(want.Pods, policy.Pod{Namespace: namespace, Name: fmt.Sprint(k), Node: "far", Labels: labels, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i), byte(k)})}})
			}
		}
		var names policy.Selector
		for _, key := range keys {
			names.Requirements = append(names.Requirements, policy.Requirement{Key: key, Operator: "Exists"})
		}
		p := with("tenant", "names", 0)
		if p.Subject = (policy.PodSelector{Namespaces: selects(policy.NamespaceLabel, "tenant")}); subject {
			p.Subject.Pods = names
		}
		p.Ingress[0].Peers = []policy.Peer{{Pods: &policy.PodSelector{Pods: names}}}
		if subject {
			p.Ingress[0].Peers[0].Pods.Namespaces = selects(policy.NamespaceLabel, "tenant")
		}
		want.Policies = append(want.Policies, p)
		want.Trim("here")
		full, lost, err := new(Shedder).Apply(t.Context(), fewLabels{most: 50_000}, "here", want)
		if err != nil || (lost == nil) != subject || len(full) != map[bool]int{false: 1, true: 0}[subject] || len(full) == 1 && full[0].Namespace != "tenant" {
			t.Errorf("subject %t: %v, %v: %v", subject, full, lost, err)
		}
	}
}
