// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// place notes the pods and nodes of a snapshot, and whose addresses have come, gone or changed. It returns the pods of this node that
// came, or that policies may select otherwise than before.
func (c *Compiler) place(s *Snapshot, touched map[netip.Prefix]bool) map[*pod]bool {
	changed, hosts, here := map[*pod]bool{}, make(map[netip.Prefix]*content, len(c.hosts)), make(map[netip.Addr]*pod, len(c.pods))
	for _, n := range s.Nodes {
		is := c.describe(content{kind: aNode, labels: n.Labels, ownNode: n.Name == s.Node})
		for _, a := range n.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
		}
	}
	namespaces := s.namespaceLabels()
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.HostNetwork {
			continue
		}
		is := c.describe(content{kind: aPod, namespace: namespaces[p.Namespace], labels: p.Labels, ports: sortedPorts(p.Ports)})
		for _, a := range p.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
		}
		if p.enforced(s.Node) {
			here[p.Addresses[0].Unmap()] = c.placePod(p, is, changed)
		}
	}
	for at, is := range hosts {
		if was := c.hosts[at]; was != is {
			touched[at] = true
			is.addresses++
			if was != nil {
				was.addresses--
			}
		}
	}
	for at, was := range c.hosts {
		if hosts[at] == nil {
			touched[at] = true
			was.addresses--
		}
	}
	for first, p := range c.pods {
		if here[first] != p {
			c.leave(p)
		}
	}
	for id, is := range c.contents {
		if is.addresses == 0 {
			delete(c.contents, id)
			c.index(is, func(set map[*content]struct{}) { delete(set, is) })
		}
	}
	c.hosts, c.pods = hosts, here
	return changed
}

// placePod returns a pod of this node, and notes whether it changed. Its addresses make it what it is.
func (c *Compiler) placePod(p *Pod, is *content, changed map[*pod]bool) *pod {
	had := c.pods[p.Addresses[0].Unmap()]
	if had == nil || !slices.Equal(had.addresses, p.Addresses) {
		had = &pod{addresses: slices.Clone(p.Addresses), entries: map[*entry]struct{}{}}
	}
	if had.content != is || !slices.Equal(had.ports, p.Ports) {
		if had.content != nil {
			delete(had.content.pods, had)
		}
		had.content, had.ports = is, slices.Clone(p.Ports)
		if is.pods == nil {
			is.pods = map[*pod]struct{}{}
		}
		is.pods[had] = struct{}{}
		changed[had] = true
	}
	return had
}

// leave forgets a pod of this node.
func (c *Compiler) leave(p *pod) {
	for e := range p.entries {
		delete(e.pods, p)
	}
	delete(p.content.pods, p)
	for _, list := range p.sets {
		c.left = append(c.left, list[:]...)
	}
	for _, a := range p.addresses {
		c.endpoints.remove(mapped(a))
	}
}

func sortedPorts(ports []NamedPort) []NamedPort {
	return slices.Compact(slices.SortedFunc(slices.Values(ports), func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	}))
}
