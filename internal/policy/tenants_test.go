// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"net/netip"

	"mustang/internal/policy"
)

func inNamespace(name string) policy.PodSelector {
	return policy.PodSelector{Namespaces: policy.Selector{Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
}

// internet returns a policy that lets pods call all addresses, by rules that each have a port.
func internet(tier policy.Tier, namespace, app string, rules int) policy.Policy {
	p := policy.Policy{Tier: tier, Namespace: namespace, Name: "internet" + app, IsolatesEgress: tier == policy.Namespaced}
	if p.Subject = inNamespace(namespace); app != "" {
		p.Subject.Pods.Labels = map[string]string{"app": app}
	}
	for n := range rules {
		port := uint16(1000 + 2*n)
		p.Egress = append(p.Egress, policy.Rule{
			Action: policy.Accept, Ports: []policy.Port{{Protocol: 6, First: port, Last: port}},
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}},
		})
	}
	if tier != policy.Namespaced {
		p.Namespace, p.Name = "", "internet-"+namespace
	}
	return p
}

// addresses returns a policy of as many addresses, from 20.net.0.0.
func addresses(namespace, name string, net, n int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true,
		Subject: inNamespace(namespace), Ingress: make([]policy.Rule, 1)}
	for i := range n {
		at := netip.AddrFrom4([4]byte{20, byte(net + i>>16), byte(i >> 8), byte(i)})
		p.Ingress[0].Peers = append(p.Ingress[0].Peers,
			policy.Peer{Block: &policy.Block{CIDR: netip.PrefixFrom(at, at.BitLen())}})
	}
	return p
}

func crossing(namespace, name string, ranges, ports int) policy.Policy {
	p := policy.Policy{Tier: policy.Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true,
		Subject: inNamespace(namespace)}
	all := policy.Rule{Action: policy.Accept,
		Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}}}}
	for n := range ports {
		port := uint16(2*n + 1)
		all.Ports = append(all.Ports, policy.Port{Protocol: 6, First: port, Last: port})
	}
	p.Ingress = []policy.Rule{all}
	for n := range ranges {
		port := uint16(20000 + 2*n)
		p.Ingress = append(p.Ingress, policy.Rule{
			Action: policy.Accept, Ports: []policy.Port{{Protocol: 6, First: port, Last: port}},
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n),
				0}), 24)}}},
		})
	}
	return p
}

// on returns a snapshot of a node with a pod for each app of a namespace.
func on(policies []policy.Policy, apps map[string][]string) policy.Snapshot {
	s := policy.Snapshot{Node: "node", Policies: policies}
	for namespace, all := range apps {
		for _, app := range all {
			at := netip.AddrFrom4([4]byte{10, 0, byte(len(s.Pods) >> 8), byte(len(s.Pods))})
			s.Pods = append(s.Pods, policy.Pod{
				Namespace: namespace, Name: app, Node: "node", Labels: map[string]string{"app": app}, Addresses: []netip.Addr{at},
			})
		}
	}
	return s
}

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
