// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"mustang/internal/policy"
	"mustang/internal/service"
)

// policyRecipes are sets of policies for the nine pods p0 to p8 of TestPolicyMatrix, after
// github.com/ahmetb/kubernetes-network-policy-recipes and the definitions of the APIs.
func policyRecipes() []string {
	in := func(namespace, name, spec string) string {
		return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: %s, name: %s}, spec: {%s}}\n---\n", namespace, name, spec)
	}
	cluster := func(name, tier string, priority int, rules string) string {
		return fmt.Sprintf("{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: %s}, "+
			"spec: {tier: %s, priority: %d, subject: {namespaces: {}}, %s}}\n---\n", name, tier, priority, rules)
	}
	return []string{
		in("n0", "deny-to-an-application", "podSelector: {matchLabels: {app: a}}, ingress: []"),
		in("n0", "limit-to-an-application", "podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"),
		in("n0", "allow-all", "podSelector: {matchLabels: {app: a}}, ingress: [{}]") + in("n0", "deny-all", "podSelector: {}, ingress: []"),
		in("n1", "deny-from-other-namespaces", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]"),
		in("n0", "from-a-namespace", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: one}}}]}]"),
		in("n0", "pods-of-a-namespace", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: one}}, podSelector: {matchLabels: {app: c}}}]}]"),
		in("n2", "external", "podSelector: {matchLabels: {app: b}}, ingress: [{from: []}]") + in("n2", "deny", "podSelector: {}, policyTypes: [Ingress]"),
		in("n0", "ports", "podSelector: {}, ingress: [{ports: [{port: 80}]}, {ports: [{protocol: UDP, port: 8000, endPort: 9000}], from: [{podSelector: {}}]}]"),
		in("n0", "named", "podSelector: {}, ingress: [{ports: [{port: web}]}]") + in("n1", "named", "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: web}]}]"),
		in("n1", "no-egress", "podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]"),
		in("n1", "egress-in-cluster", "podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}]}]"),
		in("n2", "egress-port", "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 80}, {protocol: SCTP, port: 80}]}]"),
		in("n0", "block", `podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{ipBlock: {cidr: 192.168.10.0/24, except: [192.168.10.24/29]}}]}], `+
			`egress: [{to: [{ipBlock: {cidr: "fd00:10::/64", except: ["fd00:10::20/126"]}}]}]`),
		cluster("admin", "Admin", 10, `ingress: [{name: d, action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}]}]`) +
			in("n0", "allow", "podSelector: {}, ingress: [{}]"),
		cluster("pass", "Admin", 1, `ingress: [{name: p, action: Pass, from: [{namespaces: {matchLabels: {team: one}}}]}, {name: a, action: Accept, from: [{namespaces: {}}]}]`) +
			in("n2", "deny", "podSelector: {}, policyTypes: [Ingress]") +
			cluster("base", "Baseline", 1, `egress: [{name: d, action: Deny, to: [{networks: ["192.168.10.0/26"]}]}]`),
	}
}

// policyGenerator makes random policies for the nine pods.
type policyGenerator struct{ *rand.Rand }

func choose[T any](g policyGenerator, of ...T) T { return of[g.IntN(len(of))] }

func (g policyGenerator) policies() []policy.Policy {
	var all []policy.Policy
	for i := range 1 + g.IntN(6) {
		p := policy.Policy{Name: fmt.Sprintf("p%d", i), Tier: choose(g, policy.Namespaced, policy.Namespaced, policy.Admin, policy.Baseline)}
		p.Subject = policy.PodSelector{Namespaces: g.selector("team", "one"), Pods: g.selector("app", "a", "b", "c")}
		if p.Tier == policy.Namespaced {
			p.Namespace = choose(g, "n0", "n1", "n2")
			p.Subject.Namespaces = policy.Selector{Labels: map[string]string{policy.NamespaceLabel: p.Namespace}}
			p.IsolatesEgress, p.IsolatesIngress = g.IntN(2) == 0, g.IntN(2) == 0
		} else {
			p.Priority = uint16(g.IntN(3))
		}
		for range g.IntN(3) {
			p.Ingress = append(p.Ingress, g.rule(p.Tier))
		}
		for range g.IntN(3) {
			p.Egress = append(p.Egress, g.rule(p.Tier))
		}
		all = append(all, p)
	}
	return all
}

func (g policyGenerator) selector(key string, values ...string) policy.Selector {
	switch g.IntN(4) {
	case 0:
		return policy.Selector{}
	case 1:
		return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: choose(g, "NotIn", "In"), Values: []string{choose(g, values...)}}}}
	case 2:
		return policy.Selector{Requirements: []policy.Requirement{{Key: choose(g, key, "tier"), Operator: choose(g, "Exists", "DoesNotExist")}}}
	}
	return policy.Selector{Labels: map[string]string{key: choose(g, values...)}}
}

func (g policyGenerator) rule(tier policy.Tier) policy.Rule {
	r := policy.Rule{}
	if tier != policy.Namespaced {
		r.Action = choose(g, policy.Accept, policy.Deny, policy.Pass)
	}
	for range g.IntN(3) {
		switch g.IntN(4) {
		case 0:
			b := &policy.Block{CIDR: netip.MustParsePrefix(choose(g, "0.0.0.0/0", "192.168.10.0/24", "192.168.10.16/28", "fd00:10::/64", "::/0", "192.168.10.22/32"))}
			if e := netip.MustParsePrefix("192.168.10.24/31"); g.IntN(2) == 0 && b.CIDR.Contains(e.Addr()) && b.CIDR.Bits() < 31 {
				b.Except = []netip.Prefix{e}
			}
			r.Peers = append(r.Peers, policy.Peer{Block: b})
		default:
			r.Peers = append(r.Peers, policy.Peer{Pods: &policy.PodSelector{Namespaces: g.selector("team", "one"), Pods: g.selector("app", "a", "b", "c")}})
		}
	}
	for range g.IntN(3) {
		p := policy.Port{Protocol: choose(g, service.TCP, service.UDP, service.SCTP)}
		switch g.IntN(3) {
		case 0:
			p.Name = "web"
		case 1:
			p.First, p.Last = 1, choose(g, uint16(80), 1000, 8080, 65535)
		default:
			p.First = choose(g, uint16(80), 8080, 443)
			p.Last = p.First
		}
		r.Ports = append(r.Ports, p)
	}
	return r
}
