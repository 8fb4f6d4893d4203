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

// snapshot returns all that is compiled, with what was in force before. Without policies, nothing is to be known.
func (p Policies) snapshot(docs documents, now state) (policy.Snapshot, error) {
	s, err := p.assemble(now)
	if err != nil {
		return s, err
	}
	before, err := p.assemble(docs.before)
	switch {
	case err != nil:
		return s, err
	case len(s.Policies)+len(before.Policies) == 0:
		return policy.Snapshot{}, nil
	case len(before.Policies) > 0:
		s.Previous = &before
	}
	return s, p.addLinkLocal(&s)
}

// assemble makes a snapshot of files and the endpoints of this node.
func (p Policies) assemble(d state) (policy.Snapshot, error) {
	s := policy.Snapshot{Policies: d.inForce()}
	for _, owner := range d.owners() {
		s.Namespaces = append(s.Namespaces, d.sets[owner].Namespaces...) // of two by one name, the last counts
	}
	for _, owner := range d.trusted() {
		s.Nodes = append(s.Nodes, d.sets[owner].Nodes...)
		s.Pods = append(s.Pods, d.sets[owner].Pods...)
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

// addLinkLocal adds the pods of this node once more, each with its link-local address, as pods that have no endpoint:
// as peers they are known by that too. One that two have, on different links, is nobody's; one that the node has too,
// as an ipvlan with the MAC address of its parent, is the node's, and one that a document gives a pod is that pod's.
func (p Policies) addLinkLocal(s *policy.Snapshot) error {
	of, by, twice := map[netip.Addr]netip.Addr{}, map[netip.Addr]uint32{}, map[netip.Addr]bool{}
	for row, err := range p.Objects.Senders.All() {
		if err != nil {
			return err
		}
		addr := rows.DecodeAddr(row.Value.LinkLocal)
		if !addr.IsLinkLocalUnicast() {
			continue
		}
		if id, ok := by[addr]; ok && id != row.Value.Endpoint {
			twice[addr] = true
		}
		by[addr], of[rows.DecodeAddr(row.Value.Pod)] = row.Value.Endpoint, addr
	}
	for _, n := range s.Nodes {
		for _, addr := range n.Addresses {
			twice[addr.Unmap()] = true
		}
	}
	for _, pod := range s.Pods {
		for _, addr := range pod.Addresses {
			twice[addr.Unmap()] = true
		}
	}
	for _, pod := range slices.Clone(s.Pods) {
		if pod.HostNetwork || pod.Node != s.Node {
			continue
		}
		for _, a := range pod.Addresses {
			if addr, ok := of[a.Unmap()]; ok && !twice[addr] {
				pod.Node, pod.Addresses = "", []netip.Addr{addr}
				s.Pods = append(s.Pods, pod)
				break
			}
		}
	}
	return nil
}

// addNode adds this node, with the labels of the document that has one of its addresses: that of its name, or else the
// first. Each address is then one node's. Those that this node's pods have are no node's, those of this node are its
// own, whoever else says to have them, and others are those of the first node that has them.
func addNode(s *policy.Snapshot, own []netip.Addr, local map[netip.Addr]uint32) {
	s.Node, _ = os.Hostname()
	here := policy.Node{Name: s.Node, Addresses: own}
	claims := func(n policy.Node) bool {
		return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return slices.Contains(own, a.Unmap()) })
	}
	at := slices.IndexFunc(s.Nodes, func(n policy.Node) bool { return n.Name == s.Node && claims(n) })
	if at < 0 {
		at = slices.IndexFunc(s.Nodes, claims)
	}
	if at >= 0 {
		here.Labels = s.Nodes[at].Labels
	}
	s.Nodes = append([]policy.Node{here}, s.Nodes...)
	taken := map[netip.Addr]bool{}
	for i := range s.Nodes {
		var free []netip.Addr
		for _, a := range s.Nodes[i].Addresses {
			a = a.Unmap()
			if _, pod := local[a]; !pod && !taken[a] {
				taken[a] = true
				free = append(free, a)
			}
		}
		s.Nodes[i].Addresses = free
	}
}

// addPods adds the pods of this node, whose addresses and names its endpoints know better than documents do. Labels and
// ports are those of the first document that has a pod by this name, for all endpoints of the name, and otherwise those
// that the endpoint was added with. An address of another node's pods is that of the first that has it.
func addPods(s *policy.Snapshot, labelled map[uint32]policy.Pod, local map[netip.Addr]uint32) {
	taken := map[netip.Addr]bool{}
	for _, n := range s.Nodes {
		for _, a := range n.Addresses {
			taken[a] = true
		}
	}
	by := map[uint32]*policy.Pod{}
	named := map[[2]string][]uint32{} // one of them may be about to go, as of a pod that was deleted by force
	for id, pod := range labelled {
		by[id] = &pod
		if pod.Name != "" {
			name := [2]string{pod.Namespace, pod.Name}
			named[name] = append(named[name], id)
		}
	}
	var pods []policy.Pod
	for _, pod := range s.Pods {
		if name := [2]string{pod.Namespace, pod.Name}; !pod.HostNetwork {
			for _, id := range named[name] { // labels change while a pod lives
				by[id].Labels, by[id].Ports, by[id].Lacks = pod.Labels, pod.Ports, pod.Lacks
			}
			delete(named, name)
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
			case !here && !taken[a.Unmap()]:
				taken[a.Unmap()] = true
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
