// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

func (a *asked) add(p *Policy) int {
	had := len(a.values) + len(a.keys)
	for d, r := range p.allRules {
		if !p.Concerns(d) {
			continue
		}
		for _, peer := range r.Peers {
			switch {
			case peer.Pods != nil:
				a.selector(p.Namespace, label{of: aNamespace}, peer.Pods.Namespaces)
				a.selector(p.Namespace, label{in: peer.Pods.Namespaces.Labels[NamespaceLabel]}, peer.Pods.Pods)
			case peer.Nodes != nil:
				a.selector(p.Namespace, label{of: aNode}, *peer.Nodes)
			}
		}
		for _, port := range r.Ports {
			if d == Egress && port.Name != "" { // on ingress it is a port of the selected pod
				a.ports[port.Name] = true
			}
		}
	}
	return len(a.values) + len(a.keys) - had
}

func (a *asked) selector(by string, l label, s Selector) {
	value := func() {
		if a.values[l] == nil {
			a.values[l] = map[string]bool{}
		}
		a.values[l][by] = true
	}
	for l.key, l.value = range s.Labels {
		value()
	}
	for _, r := range s.Requirements {
		if l.key, l.value = r.Key, ""; len(r.Values) == 0 {
			a.keys[l] = true
		}
		for _, l.value = range r.Values {
			value()
		}
	}
}

func (a *asked) labels(f *form, at label, labels map[string]string, by []label) []label {
	type known struct {
		label
		asked bool // for its value
	}
	var few [8]known
	all := few[:0]
	for key, value := range labels {
		wide, narrow := label{at.of, "", key, value}, label{at.of, at.in, key, value}
		by, asked := wide, a.values[wide] != nil || a.values[narrow] != nil
		if wide.value, narrow.value = "", ""; asked || a.keys[wide] || a.keys[narrow] {
			all = append(all, known{by, asked})
		}
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Compare(a.key, b.key) })
	f.number(uint64(len(all)))
	for _, l := range all {
		f.text(l.key)
		if f.flag(l.asked); l.asked {
			f.text(l.value)
			by = append(by, l.label)
		}
	}
	return by
}

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
		of.ports = slices.DeleteFunc(slices.Clone(of.ports), func(p NamedPort) bool { return !c.asked.ports[p.Name] })
		slices.SortFunc(of.ports, func(a, b NamedPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		of.ports = slices.Compact(of.ports)
	}
	f.named(of.ports)
	f.flag(of.ownNode)
	of.id = f.digest()
	if found := c.contents[of.id]; found != nil {
		return found
	}
	of.by = slices.Clone(all)
	c.contents[of.id] = &of
	for _, l := range of.by {
		c.labelled[l] = append(c.labelled[l], &of)
	}
	return &of
}

// ownNodes is the first number of identities of the node's own addresses. The datapath accepts a packet from these
// addresses only if the node has sent it.
const ownNodes = 1 << 31

// onLink is a bit beside the identity in the rows of pods' link-local addresses. Packets from these addresses to pods
// with a device of their own need a seal; an address that a rule names as a block does not.
const onLink = 1 << 30

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
	i.number = c.number(f.digest(), from)
	return i.number
}
