// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/go-json-experiment/json"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// Policies are the network policies of a datapath.
type Policies struct {
	// Objects are the maps, with open tables.
	Objects *objects.Objects
	// Node returns the addresses of this node.
	Node func() ([]netip.Addr, error)
}

// Set is the policies of an owner, with pods, nodes and namespaces.
type Set struct {
	policy.Snapshot
	// Audit counts denied packets and lets them pass. While policies of another owner are enforced, these do not affect
	// verdicts.
	Audit bool `json:",omitempty"`
	// Quota is the number of parts of a map: the NetworkPolicies of a namespace may fill one. 0 or 1: unlimited.
	Quota int `json:"-"`
}

type documents struct {
	now, before state // rows follow before, which may be the same
	texts       map[service.Owner][]byte
	pending     bool // rows may be behind, or a killed process has left the previous policies
}

type state struct {
	sets    map[service.Owner]Set
	pods    map[uint32]policy.Pod // by endpoint
	joining map[netip.Addr]uint32 // endpoints without a row yet, by address
}

func (s state) owners() []service.Owner { return slices.Sorted(maps.Keys(s.sets)) }

// byPrecedence returns the owners sorted by precedence: if two have different facts of an address, the first wins.
// The agent is before the command line.
func (s state) byPrecedence() []service.Owner {
	owners := s.owners()
	slices.Reverse(owners)
	return owners
}

// enforcedBy returns an owner whose policies are enforced, except one of them; 0: none.
func (s state) enforcedBy(but service.Owner) service.Owner {
	for _, owner := range s.owners() {
		if set := s.sets[owner]; owner != but && len(set.Policies) > 0 && !set.Audit {
			return owner
		}
	}
	return 0
}

// inForce returns the policies that hold. All of them together make a verdict. So audited policies are left out while
// policies of another owner are enforced: they never drop a packet.
func (s state) inForce() (all []policy.Policy) {
	enforced := s.enforcedBy(0) != 0
	for _, owner := range s.owners() {
		if set := s.sets[owner]; !enforced || !set.Audit {
			all = append(all, set.Policies...)
		}
	}
	return all
}

func (s state) audit() bool { return s.enforcedBy(0) == 0 && !s.idle() }

func (s state) idle() bool {
	for _, set := range s.sets {
		if len(set.Policies) > 0 {
			return false
		}
	}
	return true
}

// snapshot returns all that is compiled, with the previous policies. Without policies it is empty.
func (p Policies) snapshot(docs documents, now state) (policy.Snapshot, error) {
	policies, previous := now.inForce(), docs.before.inForce()
	if len(policies)+len(previous) == 0 {
		return policy.Snapshot{}, nil
	}
	here, err := p.here()
	if err != nil {
		return policy.Snapshot{}, err
	}
	s := here.assemble(now)
	if len(previous) > 0 {
		before := here.assemble(docs.before)
		s.Previous = &before
	}
	return s, p.addLinkLocal(&s)
}

// here holds this node's endpoints and addresses, which the files lack.
type here struct {
	endpoints map[netip.Addr]uint32 // IDs by address
	node      []netip.Addr
}

func (p Policies) here() (h here, err error) {
	h.endpoints = map[netip.Addr]uint32{}
	for row, err := range p.Objects.Endpoints.All() {
		if err != nil {
			return h, err
		}
		h.endpoints[rows.DecodeAddr(row.Key)] = row.Value.Id
	}
	h.node, err = p.Node()
	return h, err
}

func (h here) assemble(d state) policy.Snapshot {
	s := policy.Snapshot{Policies: d.inForce()}
	for _, owner := range d.owners() {
		s.Namespaces = append(s.Namespaces, d.sets[owner].Namespaces...) // of two by one name, the last counts
	}
	for _, owner := range d.byPrecedence() {
		s.Nodes = append(s.Nodes, d.sets[owner].Nodes...)
		s.Pods = append(s.Pods, d.sets[owner].Pods...)
	}
	local := map[netip.Addr]uint32{}
	maps.Copy(local, d.joining)
	maps.Copy(local, h.endpoints)
	addNode(&s, slices.Clone(h.node), local)
	addPods(&s, d.pods, local)
	return s
}

// addLinkLocal adds the pods of this node once more, each with its link-local address, as peers without an endpoint.
// An address of two pods, on different links, is skipped. If the node has it too, as with an ipvlan with its parent's
// MAC address, it is the node's. If a set gives it to a pod, it is that pod's.
func (p Policies) addLinkLocal(s *policy.Snapshot) error {
	of, by, taken := map[netip.Addr]netip.Addr{}, map[netip.Addr]uint32{}, map[netip.Addr]bool{}
	for row, err := range p.Objects.Senders.All() {
		if err != nil {
			return err
		}
		addr := rows.DecodeAddr(row.Value.LinkLocal)
		if !addr.IsLinkLocalUnicast() {
			continue
		}
		if id, ok := by[addr]; ok && id != row.Value.Endpoint {
			taken[addr] = true
		}
		by[addr], of[rows.DecodeAddr(row.Value.Pod)] = row.Value.Endpoint, addr
	}
	for _, n := range s.Nodes {
		take(n.Addresses, taken, nil)
	}
	for _, pod := range s.Pods {
		take(pod.Addresses, taken, nil)
	}
	for _, pod := range slices.Clone(s.Pods) {
		if pod.HostNetwork || pod.Node != s.Node {
			continue
		}
		for _, a := range pod.Addresses {
			if addr, ok := of[a.Unmap()]; ok && !taken[addr] {
				pod.Node, pod.Addresses = "", []netip.Addr{addr}
				s.Pods = append(s.Pods, pod)
				break
			}
		}
	}
	return nil
}

func take(addresses []netip.Addr, taken map[netip.Addr]bool, local map[netip.Addr]uint32) (free []netip.Addr) {
	for _, a := range addresses {
		a = a.Unmap()
		if _, here := local[a]; !here && !taken[a] {
			taken[a] = true
			free = append(free, a)
		}
	}
	return free
}

// addNode adds this node, with the labels of the node object that has one of its addresses: the one of its name, or
// else the first. Each address then belongs to one node. An address of an endpoint belongs to no node, an address of
// this node to it, and any other to the first node that has it.
func addNode(s *policy.Snapshot, own []netip.Addr, local map[netip.Addr]uint32) {
	s.Node, _ = os.Hostname()
	here := policy.Node{Name: s.Node, Addresses: own}
	isHere := func(n policy.Node) bool {
		return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return slices.Contains(own, a.Unmap()) })
	}
	at := slices.IndexFunc(s.Nodes, func(n policy.Node) bool { return n.Name == s.Node && isHere(n) })
	if at < 0 {
		at = slices.IndexFunc(s.Nodes, isHere)
	}
	if at >= 0 {
		here.Labels = s.Nodes[at].Labels
	}
	s.Nodes = append([]policy.Node{here}, s.Nodes...)
	taken := map[netip.Addr]bool{}
	for i := range s.Nodes {
		s.Nodes[i].Addresses = take(s.Nodes[i].Addresses, taken, local)
	}
}

// podName is the namespace and the name of a pod.
type podName [2]string

func nameOf(p *policy.Pod) podName { return podName{p.Namespace, p.Name} }

// addPods adds the pods of this node, with the addresses and names of its endpoints. Labels and ports come from the
// first pod object of this name, for all endpoints of the name, and otherwise from the call that added the endpoint.
// An address of another node's pods belongs to the first that has it.
func addPods(s *policy.Snapshot, known map[uint32]policy.Pod, local map[netip.Addr]uint32) {
	taken := map[netip.Addr]bool{}
	for _, n := range s.Nodes {
		take(n.Addresses, taken, nil)
	}
	by := map[uint32]*policy.Pod{}
	named := map[podName][]*policy.Pod{} // one of them may be about to go, as of a pod that was deleted by force
	for id, pod := range known {
		by[id] = &pod
		if pod.Name != "" {
			named[nameOf(&pod)] = append(named[nameOf(&pod)], &pod)
		}
	}
	var pods []policy.Pod
	for _, pod := range s.Pods {
		if pod.HostNetwork {
			pods = append(pods, pod)
			continue
		}
		for _, of := range named[nameOf(&pod)] { // labels change while a pod lives
			of.Labels, of.Ports = pod.Labels, pod.Ports
		}
		delete(named, nameOf(&pod))
		for _, a := range pod.Addresses {
			if id, here := local[a.Unmap()]; here && by[id] == nil {
				by[id] = &pod
			}
		}
		if elsewhere := take(pod.Addresses, taken, local); len(elsewhere) > 0 {
			other := pod
			if other.Addresses = elsewhere; other.Node == s.Node {
				other.Node = "" // it lacks an endpoint here
			}
			pods = append(pods, other)
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

// orphans returns the pods of endpoints whose Pod an owner no longer names. Their processes may run on, so they keep
// its labels and ports until they are deleted.
func (s state) orphans(had, want *Set) map[uint32]policy.Pod {
	gone := map[podName]*policy.Pod{}
	for i := range had.Pods {
		if p := &had.Pods[i]; !p.HostNetwork {
			gone[nameOf(p)] = p
		}
	}
	for i := range want.Pods {
		delete(gone, nameOf(&want.Pods[i]))
	}
	orphans := map[uint32]policy.Pod{}
	for id, pod := range s.pods {
		if p := gone[nameOf(&pod)]; p != nil && pod.Name != "" {
			pod.Labels, pod.Ports = p.Labels, p.Ports
			orphans[id] = pod
		}
	}
	return orphans
}

func same(a, b policy.Pod) bool {
	x, err := json.Marshal(a, json.Deterministic(true))
	y, errY := json.Marshal(b, json.Deterministic(true))
	return err == nil && errY == nil && bytes.Equal(x, y)
}
