// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
)

// assemble makes a snapshot of all documents and the endpoints of this node.
func (p Policies) assemble(d documents) (policy.Snapshot, error) {
	var s policy.Snapshot
	changed := false
	for _, owner := range d.owners() {
		set := d.sets[owner]
		s.Nodes = append(s.Nodes, set.now.Nodes...)
		s.Namespaces = append(s.Namespaces, set.now.Namespaces...)
		s.Pods = append(s.Pods, set.now.Pods...)
		s.Policies = append(s.Policies, set.now.Policies...)
		if set.before != nil {
			s.Previous = append(s.Previous, set.before...)
			changed = true
		} else {
			s.Previous = append(s.Previous, set.now.Policies...)
		}
	}
	if !changed {
		s.Previous = nil
	}
	local := maps.Clone(d.joining)
	if local == nil {
		local = map[netip.Addr]uint32{}
	}
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return s, err
		}
		local[rows.DecodeAddr(row.Key)] = row.Value.Id
	}
	own, err := p.Node()
	if err != nil {
		return s, err
	}
	addNode(&s, own, local)
	addPods(&s, d.pods, local)
	return s, nil
}

// addNode adds this node, or its addresses to that of the documents which has one of them.
func addNode(s *policy.Snapshot, own []netip.Addr, local map[netip.Addr]uint32) {
	here := -1
	taken := map[netip.Addr]bool{}
	for i, n := range s.Nodes {
		for _, a := range n.Addresses {
			taken[a.Unmap()] = true
			if slices.Contains(own, a.Unmap()) && here < 0 {
				here = i
			}
		}
	}
	if here < 0 {
		name, _ := os.Hostname()
		s.Nodes = append(slices.Clone(s.Nodes), policy.Node{Name: name})
		here = len(s.Nodes) - 1
	}
	n := &s.Nodes[here]
	s.Node = n.Name
	n.Addresses = slices.Clone(n.Addresses)
	for _, a := range own {
		if _, pod := local[a]; !taken[a] && !pod {
			taken[a] = true
			n.Addresses = append(n.Addresses, a)
		}
	}
}

// addPods adds the pods of this node, whose addresses and names its endpoints know better than documents do. Labels and ports are
// those of the document that has a pod by this name, and otherwise those that the endpoint was added with.
func addPods(s *policy.Snapshot, labelled map[uint32]policy.Pod, local map[netip.Addr]uint32) {
	nodes := map[netip.Addr]bool{}
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			nodes[a.Unmap()] = true
		}
	}
	by := map[uint32]*policy.Pod{}
	named := map[[2]string]uint32{}
	for id, pod := range labelled {
		by[id] = &pod
		if pod.Name != "" {
			named[[2]string{pod.Namespace, pod.Name}] = id
		}
	}
	var pods []policy.Pod
	for _, pod := range s.Pods {
		if id, ok := named[[2]string{pod.Namespace, pod.Name}]; ok && !pod.HostNetwork { // labels change while a pod lives
			by[id].Labels, by[id].Ports = pod.Labels, pod.Ports
		}
		if pod.HostNetwork {
			pods = append(pods, pod)
			continue
		}
		var elsewhere []netip.Addr
		for _, a := range pod.Addresses {
			id, here := local[a.Unmap()]
			switch {
			case here && by[id] == nil:
				by[id] = &pod
			case !here && !nodes[a.Unmap()]:
				elsewhere = append(elsewhere, a)
			}
		}
		if len(elsewhere) > 0 {
			pod.Addresses = elsewhere
			if pod.Node == s.Node {
				pod.Node = "" // it has no endpoint here
			}
			pods = append(pods, pod)
		}
	}
	addresses := map[uint32][]netip.Addr{}
	for a, id := range local {
		addresses[id] = append(addresses[id], a)
	}
	for _, id := range slices.Sorted(maps.Keys(addresses)) {
		pod := policy.Pod{Namespace: "default"}
		if by[id] != nil {
			pod = *by[id]
		}
		pod.Name = cmp.Or(pod.Name, fmt.Sprintf("endpoint-%d", id))
		pod.Node, pod.Addresses = s.Node, addresses[id]
		slices.SortFunc(pod.Addresses, netip.Addr.Compare)
		pods = append(pods, pod)
	}
	s.Pods = pods
}
