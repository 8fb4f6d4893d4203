// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// content is what rules use of a pod or a node, without the blocks of its addresses. Its labels are the labels of one
// such object: no rule distinguishes the others from it.
type content struct {
	kind       kind
	namespace  map[string]string
	labels     map[string]string
	ports      []NamedPort
	ownNode    bool
	id         Digest
	by         []label // that rules name
	identities []*identity
	rules      []int32 // of the set that is filled
}

// address is all that rules use of an address.
type address struct {
	*content        // nil: of neither pod nor node
	in       *cover // nil: it is in no block
}

// identity is all that policies can distinguish of a peer. Addresses that no policy distinguishes share one.
type identity struct {
	address
	number uint32
}

// placePeers stores the content of each address of a pod or node.
func (c *compiler) placePeers(s *Snapshot) {
	place := func(addresses []netip.Addr, of content) {
		is := c.describe(of)
		for _, a := range addresses {
			a = a.Unmap()
			c.hosts[netip.PrefixFrom(a, a.BitLen())] = is
		}
	}
	for _, n := range s.Nodes {
		place(n.Addresses, content{kind: aNode, labels: n.Labels, ownNode: n.Name == s.Node})
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; !p.HostNetwork {
			place(p.Addresses, content{namespace: c.namespaces[p.Namespace], labels: p.Labels, ports: p.Ports})
		}
	}
}

// describe returns the content of a pod or node. Objects that rules do not distinguish share one.
func (c *compiler) describe(of content) *content {
	f := newForm("content")
	f.number(uint64(of.kind))
	var few [8]label
	all := append(few[:0], label{of: of.kind})
	all = c.asked.labels(f, label{of: aNamespace}, of.namespace, all)
	all = c.asked.labels(f, label{of: of.kind, in: of.namespace[NamespaceLabel]}, of.labels, all)
	if len(of.ports) > 0 {
		of.ports = slices.DeleteFunc(sortedPorts(of.ports), func(p NamedPort) bool { return !c.asked.ports[p.Name] })
	}
	f.named(of.ports)
	f.flag(of.ownNode)
	of.id = f.digest()
	if found := c.contents[of.id]; found != nil {
		return found
	}
	of.by = slices.Clone(all)
	c.contents[of.id] = &of
	c.labelled.add(&of, of.by)
	return &of
}

func sortedPorts(ports []NamedPort) []NamedPort {
	return slices.Compact(slices.SortedFunc(slices.Values(ports), func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	}))
}

// identify gives prefixes their identities.
func (c *compiler) identify() {
	for p, host := range c.hosts {
		number := c.identity(address{host, c.blocks.of(p)})
		if host.kind == aPod && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			number |= onLink
		}
		c.rows.Addresses[mappedPrefix(p)] = number
	}
	for p := range c.blocks.ends {
		if c.hosts[p] == nil {
			c.rows.Addresses[mappedPrefix(p)] = c.identity(address{in: c.blocks.of(p)})
		}
	}
}

// identity returns the number of an identity; 0: no rule uses the address.
func (c *compiler) identity(of address) uint32 {
	if of == (address{}) {
		return 0
	}
	if i := c.identities[of]; i != nil {
		return i.number
	}
	i := &identity{address: of}
	c.identities[of] = i
	f, from := newForm("identity"), uint32(0)
	if of.content != nil {
		f.bytes(of.content.id[:]...)
		of.content.identities = append(of.content.identities, i)
		if of.ownNode {
			from = ownNodes
		}
	}
	f.number(uint64(from))
	if of.in != nil {
		f.bytes(of.in.id[:]...)
		of.in.identities = append(of.in.identities, i)
	}
	i.number, _ = c.numbers.of(f.digest(), from)
	return i.number
}
