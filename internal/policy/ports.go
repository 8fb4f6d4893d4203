// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"

	"mustang/internal/service"
)

// portName is the name of a port of the pods of a namespace.
type portName struct{ namespace, name string }

// portNumber is what a name stands for.
type portNumber struct {
	protocol service.Protocol
	port     uint16
}

// rarePorts returns, for the names that NetworkPolicies alone name, and for other pods than their own, the numbers besides the [MostPortNumbers] that most pods of
// a namespace have.
func (n *named) rarePorts(pods []Pod) map[portName]map[portNumber]bool {
	counts := map[portName]map[portNumber]int{}
	for i := range pods {
		for _, port := range pods[i].Ports {
			if by := n.ports[port.Name]; !by.egress || by.ofCluster || pods[i].HostNetwork {
				continue
			}
			at := portName{pods[i].Namespace, port.Name}
			if counts[at] == nil {
				counts[at] = map[portNumber]int{}
			}
			counts[at][portNumber{port.Protocol, port.Port}]++
		}
	}
	rare := map[portName]map[portNumber]bool{}
	for at, of := range counts {
		if len(of) <= MostPortNumbers {
			continue
		}
		numbers := slices.SortedFunc(maps.Keys(of), func(a, b portNumber) int {
			return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol))
		})
		rare[at] = map[portNumber]bool{}
		for _, number := range numbers[MostPortNumbers:] {
			rare[at][number] = true
		}
	}
	return rare
}

// trimPorts drops ports that no policy names and those that are rare, and reports whether the pod lacks some that policies name.
func (n *named) trimPorts(p *Pod, rare map[portName]map[portNumber]bool) (cut bool) {
	drops := func(port NamedPort) bool {
		_, ok := n.ports[port.Name]
		isRare := ok && rare[portName{p.Namespace, port.Name}][portNumber{port.Protocol, port.Port}]
		cut = cut || isRare
		return !ok || isRare
	}
	if slices.ContainsFunc(p.Ports, drops) {
		p.Ports = slices.DeleteFunc(slices.Clone(p.Ports), drops)
	}
	if len(p.Ports) == 0 {
		p.Ports = nil
	}
	if len(p.Ports) > MostLabels {
		p.Ports, cut = p.Ports[:MostLabels], true
	}
	return cut
}
