// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// addChildren finds the devices in other namespaces whose parents are links of n.
func (c *Snapshot) addChildren(n *netns.Namespace, links []Link) error {
	inode, err := n.Inode()
	if err != nil {
		return err
	}
	for _, p := range c.entries {
		if p.Inode == inode {
			continue
		}
		id := sameNamespace // of n there
		for _, child := range p.list() {
			if child.ParentIndex == 0 || child.PeerNSID == sameNamespace {
				continue
			}
			if id == sameNamespace {
				if id = nsidsIn(p.ns, n)[0]; id < 0 {
					break
				}
			}
			if parent := linkAt(links, child.ParentIndex); parent != nil && child.PeerNSID == id {
				parent.Children = append(parent.Children, Peer{
					Name: child.Name, Kind: child.Kind, Mode: child.Mode, Index: child.Index, Namespace: new(p.NamespaceInfo),
				})
			}
		}
	}
	return nil
}

// list returns the links of an entry, or none if the namespace is gone. It reads them once.
func (p *entry) list() []Link {
	if !p.listed {
		p.links, _ = listLinks(p.ns, sameNamespace)
		p.listed = true
	}
	return p.links
}

// join fills in masters, peers and parents of links.
func (c *Snapshot) join(n *netns.Namespace, links []Link) {
	known, unseen := map[int]*entry{}, map[int][]Link{} // unseen are links of namespaces that the snapshot lacks
	for i, id := range nsidsIn(n, c.Namespaces()...) {
		known[id] = c.entries[i]
	}
	delete(known, -1)
	for i := range links {
		l := &links[i]
		l.Master = nameOf(links, l.MasterIndex)
		end := &Peer{Index: l.PeerIndex + l.ParentIndex} // at most one is set
		if end.Index == 0 {
			continue
		}
		in := links
		if id := l.PeerNSID; id != sameNamespace {
			end.Namespace = &NamespaceInfo{NSID: id}
			if p := known[id]; p != nil {
				*end.Namespace, in = p.NamespaceInfo, p.list()
				end.Namespace.NSID = id
			} else {
				if _, ok := unseen[id]; !ok {
					unseen[id], _ = listLinks(n, id) // links that can't be listed get no names
				}
				in = unseen[id]
			}
		}
		if d := linkAt(in, end.Index); d != nil {
			end.Name, end.Kind, end.Mode, end.Master = d.Name, d.Kind, d.Mode, nameOf(in, d.MasterIndex)
		}
		if l.PeerIndex != 0 {
			l.Peer = end
		} else {
			l.Parent = end
		}
	}
}

// nsidsIn returns the netnsids of namespaces in n; -1 for those that have none.
func nsidsIn(n *netns.Namespace, of ...*netns.Namespace) []int {
	ids := make([]int, len(of))
	handle, err := rtnl.In(n).Handle()
	if err == nil {
		defer handle.Close()
	}
	for i, other := range of {
		ids[i] = -1
		if err != nil {
			continue
		}
		if id, err := handle.GetNetNsIdByFd(other.FD()); err == nil {
			ids[i] = id
		}
	}
	return ids
}
