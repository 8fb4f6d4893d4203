// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// inNamespace selects all pods of a namespace.
func inNamespace(name string) PodSelector {
	return PodSelector{Namespaces: Selector{Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
}

// crossing returns a policy of a range with many ports, and of many ranges in it, which each have all of these ports and one more.
func crossing(namespace, name string, ranges, ports int) Policy {
	p := Policy{Tier: Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true, Subject: inNamespace(namespace)}
	all := Rule{Action: Accept, Peers: []Peer{{Block: &Block{CIDR: netip.MustParsePrefix("20.0.0.0/8")}}}}
	for n := range ports {
		port := uint16(2*n + 1)
		all.Ports = append(all.Ports, Port{Protocol: 6, First: port, Last: port})
	}
	p.Ingress = []Rule{all}
	for n := range ranges {
		port := uint16(20000 + 2*n)
		p.Ingress = append(p.Ingress, Rule{
			Action: Accept, Ports: []Port{{Protocol: 6, First: port, Last: port}},
			Peers: []Peer{{Block: &Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 8), byte(n), 0}), 24)}}},
		})
	}
	return p
}

// except returns a policy of rules that each select all pods but those with one value of a label.
func except(namespace, name string, rules int) Policy {
	p := Policy{Tier: Namespaced, Namespace: namespace, Name: name, IsolatesIngress: true, Subject: inNamespace(namespace)}
	for n := range rules {
		p.Ingress = append(p.Ingress, Rule{Action: Accept, Peers: []Peer{{Pods: &PodSelector{
			Pods: Selector{Requirements: []Requirement{{Key: "x", Operator: "NotIn", Values: []string{fmt.Sprint(n)}}}},
		}}}})
	}
	return p
}

// TestWorkIsBounded refuses policies whose rules meet too many identities and ports, names the namespace that they are of, and gives up in time:
// without a limit these would take minutes and gigabytes.
func TestWorkIsBounded(t *testing.T) {
	var pods []Pod
	for n := range 2000 {
		at := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		pods = append(pods, Pod{Namespace: fmt.Sprint("n", n%2), Name: fmt.Sprint(n), Labels: map[string]string{"x": fmt.Sprint(n)}, Addresses: []netip.Addr{at}})
	}
	pods[0].Node, pods[1].Node = "node", "node"
	small := []Policy{crossing("n0", "small", 10, 100), except("n0", "few", 300)}
	for name, c := range map[string]struct {
		policy  Policy
		refused string
	}{
		"ports of many ranges": {crossing("n1", "q", 4000, 6000), "NetworkPolicy n1/q"},
		"rules for many pods":  {except("n1", "q", 8000), "NetworkPolicy n1/q"},
		"fewer":                {except("n1", "q", 500), ""},
	} {
		compiler := NewCompiler(Rows{})
		_, err := compiler.Change(Snapshot{Node: "node", Policies: append(small, c.policy), Pods: pods})
		var work *WorkError
		if refused := errors.As(err, &work); refused != (c.refused != "") || refused && work.Most.String() != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if compiler.work > MostWork+MostWork/8 {
			t.Errorf("%s: work of %d, at most %d are allowed", name, compiler.work, MostWork)
		}
	}
}
