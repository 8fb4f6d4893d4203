// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// placePods notes the pods of this node, and returns those that came, or that policies may select otherwise than before.
func (c *Compiler) placePods(s *Snapshot) map[*pod]bool {
	changed, here := map[*pod]bool{}, make(map[netip.Addr]*pod, len(c.pods))
	c.peers = peers{s.Node, s.Nodes, s.Pods, s.NamespaceLabels()}
	c.told.namespaces = len(c.peers.namespaces)
	for i := range s.Pods {
		if p := &s.Pods[i]; p.enforced(s.Node) {
			here[p.Addresses[0].Unmap()] = c.placePod(p, changed)
		}
	}
	for first, p := range c.pods {
		if here[first] != p {
			c.leave(p)
		}
	}
	c.pods = here
	return changed
}

// placePod returns a pod of this node, and notes whether it changed. Its addresses make it what it is.
func (c *Compiler) placePod(p *Pod, changed map[*pod]bool) *pod {
	had, namespace := c.pods[p.Addresses[0].Unmap()], c.peers.namespaces[p.Namespace]
	if had == nil || !slices.Equal(had.addresses, p.Addresses) {
		had = &pod{addresses: slices.Clone(p.Addresses), entries: map[*entry]struct{}{}}
		changed[had] = true
	}
	if changed[had] || !maps.Equal(had.namespace, namespace) || !maps.Equal(had.labels, p.Labels) || !slices.Equal(had.ports, p.Ports) {
		c.local.remove(had, had.by)
		had.by = append(labelsOf(false, p.Labels), labelsOf(true, namespace)...)
		c.local.add(had, had.by)
		had.ports, changed[had] = slices.Clone(p.Ports), true
	}
	had.namespace, had.labels = namespace, p.Labels // those of the snapshot before go with it
	return had
}

// leave forgets a pod of this node.
func (c *Compiler) leave(p *pod) {
	for e := range p.entries {
		delete(e.pods, p)
	}
	c.local.remove(p, p.by)
	for _, list := range p.sets {
		c.lapsed.sets = append(c.lapsed.sets, list[:]...)
	}
	for _, a := range p.addresses {
		c.endpoints.remove(mapped(a))
	}
}

// peers is what a snapshot says of who may be a peer.
type peers struct {
	node       string
	nodes      []Node
	pods       []Pod
	namespaces map[string]map[string]string
}

// placePeers notes what rules tell of each address of a pod or node, and whose have come, gone or changed.
func (c *Compiler) placePeers(touched map[netip.Prefix]bool) {
	hosts := make(map[netip.Prefix]*content, len(c.hosts))
	clear(c.told.known)
	for _, n := range c.peers.nodes {
		is := c.describe(content{kind: aNode, labels: n.Labels, ownNode: n.Name == c.peers.node})
		for _, a := range n.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
		}
	}
	for i := range c.peers.pods {
		p := &c.peers.pods[i]
		if p.HostNetwork {
			continue
		}
		is := c.describe(content{kind: aPod, namespace: c.peers.namespaces[p.Namespace], labels: p.Labels, ports: p.Ports, lacks: p.Lacks})
		for _, a := range p.Addresses {
			hosts[hostPrefix(a.Unmap())] = is
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
	for id, is := range c.contents {
		if is.addresses == 0 {
			delete(c.contents, id)
			c.labelled.remove(is, is.by)
		}
	}
	c.hosts = hosts
}

func sortedPorts(ports []NamedPort) []NamedPort {
	return slices.Compact(slices.SortedFunc(slices.Values(ports), func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	}))
}
