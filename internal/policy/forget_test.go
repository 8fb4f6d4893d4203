// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"mustang/internal/service"
)

// TestForgottenLabels forgets labels that others ask to be absent: whoever asks lets in none of the pods that may have them.
func TestForgottenLabels(t *testing.T) {
	in := func(name string) Selector { return Selector{Labels: map[string]string{NamespaceLabel: name}} }
	at := func(n int) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})} }
	for name, without := range map[string]Requirement{
		"DoesNotExist": {Key: "quarantine", Operator: "DoesNotExist"}, "NotIn": {Key: "quarantine", Operator: "NotIn", Values: []string{"yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			peers := []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{without}}}}}
			db := Policy{
				Tier: Namespaced, Namespace: "shop", Name: "db", Subject: PodSelector{Namespaces: in("shop")},
				IsolatesIngress: true, Ingress: []Rule{{Peers: peers}}, IsolatesEgress: true, Egress: []Rule{{Peers: peers}},
			}
			s := Snapshot{Node: "here", Policies: []Policy{db}, Pods: []Pod{
				{Namespace: "shop", Name: "db", Node: "here", Addresses: at(1)},
				{Namespace: "tenant", Name: "ill", Labels: map[string]string{"quarantine": "yes"}, Addresses: at(2)},
				{Namespace: "tenant", Name: "well", Addresses: at(3)},
			}}
			want := map[string]bool{"ill": false, "well": true}
			check := func() {
				t.Helper()
				for i, pod := range s.Pods[1:] {
					egress, ingress, err := Explain(s, Flow{Source: pod.Addresses[0], Destination: at(1)[0], Protocol: service.TCP, Port: 80})
					if err != nil || !egress.Allow || ingress.Allow != want[pod.Name] {
						t.Errorf("pod %d, %s: ingress %v, %v", i, pod.Name, ingress, err)
					}
				}
			}
			check()
			s.Forget("tenant")
			if len(s.Pods[1].Labels) > 0 {
				t.Fatalf("it keeps %v", s.Pods[1].Labels)
			}
			check()
		})
	}
}

// TestLabelsThatNamespacesPushOut has policies of two other namespaces ask that more labels of a pod are absent than it keeps: none of them lets it in.
func TestLabelsThatNamespacesPushOut(t *testing.T) {
	pod := Pod{Namespace: "tenant", Name: "ill", Labels: map[string]string{"quarantine": "yes"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	asks := func(namespace string, keys ...string) Policy {
		p := Policy{Tier: Namespaced, Namespace: namespace, Name: "asks", Subject: PodSelector{Namespaces: Selector{Labels: map[string]string{NamespaceLabel: namespace}}}, IsolatesIngress: true}
		for _, key := range keys {
			p.Ingress = append(p.Ingress, Rule{Peers: []Peer{{Pods: &PodSelector{Pods: Selector{Requirements: []Requirement{{Key: key, Operator: "DoesNotExist"}}}}}}})
		}
		return p
	}
	var keys []string
	for i := range MostLabels + 1 {
		keys = append(keys, fmt.Sprintf("a%02d", i))
		pod.Labels[keys[i]] = "x"
	}
	shop := Pod{Namespace: "shop", Name: "db", Node: "here", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	s := Snapshot{Node: "here", Pods: []Pod{shop, pod}, Policies: []Policy{asks("shop", "quarantine"), asks("other", keys...)}}
	s.Trim("here")
	if _, in, err := Explain(s, Flow{Source: pod.Addresses[0], Destination: shop.Addresses[0], Protocol: service.TCP, Port: 80}); err != nil || in.Allow {
		t.Errorf("with the labels %v: %v, %v", s.Pods[1].Labels, in, err)
	}
}
