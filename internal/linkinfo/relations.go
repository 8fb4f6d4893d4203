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
	byIndex := map[int]*Link{}
	for i := range links {
		byIndex[links[i].Index] = &links[i]
	}
	for _, p := range c.entries {
		if p.Inode == inode {
			continue
		}
		for _, child := range p.over(n) {
			if parent := byIndex[child.ParentIndex]; parent != nil {
				place := p.NamespaceInfo
				parent.Children = append(parent.Children, Peer{
					Name: child.Name, Kind: child.Kind, Mode: child.Mode, Index: child.Index, Namespace: &place,
				})
			}
		}
	}
	return nil
}

// over returns the links of an entry whose parents are in n.
func (p *entry) over(n *netns.Namespace) []Link {
	var out []Link
	id := sameNamespace
	for _, l := range p.list() {
		if l.ParentIndex == 0 || l.PeerNSID == sameNamespace {
			continue
		}
		if id == sameNamespace {
			handle, err := rtnl.In(p.ns).Handle()
			if err != nil {
				return nil
			}
			id, err = handle.GetNetNsIdByFd(n.FD())
			handle.Close()
			if err != nil || id < 0 {
				return nil
			}
		}
		if l.PeerNSID == id {
			out = append(out, l)
		}
	}
	return out
}

// list returns the links of an entry, or none if the namespace is gone. It reads them once.
func (p *entry) list() []Link {
	if !p.listed {
		p.links, _ = listLinks(p.ns)
		p.listed = true
	}
	return p.links
}

// resolver finds the devices behind one namespace's netnsids.
type resolver struct {
	n      *netns.Namespace
	byNSID map[int]*entry
	unseen map[int][]Link // those of namespaces that no census knows
}

// join fills in masters, peers and parents of links.
func (c *Snapshot) join(n *netns.Namespace, links []Link) {
	around := resolver{n: n, byNSID: c.nsids(n), unseen: map[int][]Link{}}
	for i := range links {
		l := &links[i]
		l.Master = nameOf(links, l.MasterIndex)
		index := l.PeerIndex + l.ParentIndex // at most one is set
		if index == 0 {
			continue
		}
		end := around.end(links, l.PeerNSID, index)
		if l.PeerIndex != 0 {
			l.Peer = end
		} else {
			l.Parent = end
		}
	}
}

// nsids returns the entries that n has netnsids for.
func (c *Snapshot) nsids(n *netns.Namespace) map[int]*entry {
	out := map[int]*entry{}
	handle, err := rtnl.In(n).Handle()
	if err != nil {
		return out
	}
	defer handle.Close()
	for _, p := range c.entries {
		if id, err := handle.GetNetNsIdByFd(p.ns.FD()); err == nil && id >= 0 {
			out[id] = p
		}
	}
	return out
}

// end describes the device with an index in the namespace nsid. own are the links of the listing namespace.
func (b resolver) end(own []Link, nsid, index int) *Peer {
	end := &Peer{Index: index}
	links := own
	if nsid != sameNamespace {
		links, end.Namespace = b.look(nsid)
	}
	for _, l := range links {
		if l.Index == index {
			end.Name, end.Kind, end.Mode, end.Master = l.Name, l.Kind, l.Mode, nameOf(links, l.MasterIndex)
		}
	}
	return end
}

// look returns the links of the namespace nsid.
func (b resolver) look(nsid int) ([]Link, *NamespaceInfo) {
	if p := b.byNSID[nsid]; p != nil {
		place := p.NamespaceInfo
		place.NSID = nsid
		return p.list(), &place
	}
	links, ok := b.unseen[nsid]
	if !ok {
		// Links that can't be listed get no names.
		raws, _ := dumpLinks(b.n, nsid)
		for _, raw := range raws {
			links = append(links, newLink(raw))
		}
		b.unseen[nsid] = links
	}
	return links, &NamespaceInfo{NSID: nsid}
}

// nameOf returns the name of the link with an index, or an empty string.
func nameOf(links []Link, index int) string {
	for _, l := range links {
		if index != 0 && l.Index == index {
			return l.Name
		}
	}
	return ""
}
