// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"

	"mustang/internal/policy"
)

// hosts are the addresses of pods and nodes of a snapshot. Those that no rule tells apart are one.
type hosts struct {
	*asked
	all              []host
	contents, covers lists
}

// host is a pod or a node by one of its addresses.
type host struct {
	is             kindOfHost
	content, cover int32 // its traits, and those of its address
	pod, node      int32 // its place in the snapshot, or none
}

// kindOfHost is what a host is.
type kindOfHost byte

const (
	aPod kindOfHost = iota
	aNode
	ownNode
)

// lists are sorted lists of traits, each once.
type lists struct {
	all   [][]int32
	index map[string]int32
}

// of returns the place of a list of traits, which it sorts.
func (l *lists) of(traits []int32) int32 {
	slices.Sort(traits)
	traits = slices.Compact(traits)
	var key []byte
	for _, t := range traits {
		key = binary.LittleEndian.AppendUint32(key, uint32(t))
	}
	at, ok := l.index[string(key)]
	if !ok {
		at = int32(len(l.all))
		l.index[string(key)], l.all = at, append(l.all, traits)
	}
	return at
}

// hostsOf returns the pods and nodes of a snapshot that rules of namespaces tell apart.
func hostsOf(s *policy.Snapshot, namespaces [][]policy.Policy) *hosts {
	h := &hosts{asked: newAsked(s, namespaces), contents: lists{index: map[string]int32{}}, covers: lists{index: map[string]int32{}}}
	type key struct {
		is             kindOfHost
		content, cover int32
	}
	found, around := map[key]struct{}{}, map[netip.Prefix]int32{}
	add := func(one host, addresses []netip.Addr) {
		for _, address := range addresses {
			one.cover = h.cover(address.Unmap(), around)
			k := key{one.is, one.content, one.cover}
			if _, ok := found[k]; !ok {
				found[k], h.all = struct{}{}, append(h.all, one)
			}
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		one := host{is: aNode, content: h.contents.of(h.labels(nil, "", [2]kind{nodeLabel, nodeKey}, n.Labels)), pod: none, node: int32(i)}
		if n.Name == s.Node {
			one.is = ownNode
		}
		add(one, n.Addresses)
	}
	of := map[string][]int32{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.HostNetwork {
			continue
		}
		if _, ok := of[p.Namespace]; !ok {
			of[p.Namespace] = h.labels(nil, "", [2]kind{namespaceLabel, namespaceKey}, h.namespaces[p.Namespace])
		}
		traits := h.labels(slices.Clone(of[p.Namespace]), p.Namespace, [2]kind{podLabel, podKey}, p.Labels)
		for _, port := range p.Ports {
			if by := h.trait("", term{portName, port.Name, ""}); by != none {
				number := strconv.Itoa(int(port.Protocol)) + " " + strconv.Itoa(int(port.Port))
				traits = append(traits, h.traitOf(term{portNumber, port.Name, number}, h.traits[by].askers))
			}
		}
		add(host{content: h.contents.of(traits), pod: int32(i), node: none}, p.Addresses)
	}
	return h
}

// labels adds the traits of labels, in a namespace those of its pods.
func (h *hosts) labels(to []int32, namespace string, kinds [2]kind, labels map[string]string) []int32 {
	for key, value := range labels {
		for _, t := range []term{{kinds[0], key, value}, {kinds[1], key, ""}} {
			if one := h.trait(namespace, t); one != none {
				to = append(to, one)
			}
		}
	}
	return to
}

// cover returns the blocks that an address is in. found has what it returned for others, by the longest prefix at which a block begins or ends.
func (h *hosts) cover(address netip.Addr, found map[netip.Prefix]int32) int32 {
	around := h.blocks.Around(netip.PrefixFrom(address, address.BitLen()))
	if len(around) == 0 {
		return h.covers.of(nil)
	}
	last := around[len(around)-1]
	at, ok := found[last]
	if !ok {
		at = h.covers.of(h.blocks.Of(around))
		found[last] = at
	}
	return at
}

// apart returns one host of each that some traits tell from others.
func (h *hosts) apart(by func(*trait) bool) (one []host) {
	is := make([]bool, len(h.traits))
	for i := range h.traits {
		is[i] = by(&h.traits[i])
	}
	contents, covers := h.weigh(h.contents, is), h.weigh(h.covers, is)
	type key struct {
		is             kindOfHost
		content, cover uint64
	}
	found := map[key]struct{}{}
	for _, host := range h.all {
		k := key{host.is, contents[host.content], covers[host.cover]}
		if _, ok := found[k]; !ok {
			found[k], one = struct{}{}, append(one, host)
		}
	}
	return one
}

// weigh returns the sum of the weights of each list.
func (h *hosts) weigh(of lists, is []bool) []uint64 {
	sums := make([]uint64, len(of.all))
	for i, traits := range of.all {
		for _, t := range traits {
			if is[t] {
				sums[i] += h.traits[t].weight
			}
		}
	}
	return sums
}

// asksAlone reports whether somebody asks for something that nobody else asks for.
func (h *hosts) asksAlone(who int32) bool {
	return slices.ContainsFunc(h.traits, func(t trait) bool { return t.asksAlone(who) })
}

// only returns a snapshot with some hosts, and the pods of this node that policies of a namespace, or of the cluster, may select.
func (h *hosts) only(s *policy.Snapshot, namespace string, some []host) policy.Snapshot {
	own := policy.Snapshot{Node: s.Node, Namespaces: s.Namespaces}
	pods, nodes := map[int32]bool{}, map[int32]bool{}
	for _, one := range some {
		pods[one.pod], nodes[one.node] = true, true
	}
	for i := range s.Nodes {
		if nodes[int32(i)] {
			own.Nodes = append(own.Nodes, s.Nodes[i])
		}
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; pods[int32(i)] || p.Node == s.Node && (namespace == "" || p.Namespace == namespace) {
			own.Pods = append(own.Pods, *p)
		}
	}
	return own
}
