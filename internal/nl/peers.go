// SPDX-License-Identifier: Apache-2.0

package nl

// list returns the links of a place, which are read once. A place that is gone
// by now has none.
func (p *inhabited) list() []Link {
	if !p.listed {
		p.links, _ = p.ns.links()
		p.listed = true
	}
	return p.links
}

// neighbours answers what is behind one namespace's ids of others.
type neighbours struct {
	n      *Namespace
	byNSID map[int]*inhabited
	unseen map[int][]Link // those of namespaces that no census knows
}

// join gives links their masters, peers and parents.
func (c *Census) join(n *Namespace, links []Link) {
	around := neighbours{n: n, byNSID: c.nsids(n), unseen: map[int][]Link{}}
	for i := range links {
		l := &links[i]
		l.Master = nameOf(links, l.MasterIndex)
		index := l.PeerIndex + l.ParentIndex // a device has one of them at most
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

// nsids returns the places of a census that n has ids for.
func (c *Census) nsids(n *Namespace) map[int]*inhabited {
	out := map[int]*inhabited{}
	handle, err := n.Netlink()
	if err != nil {
		return out
	}
	defer handle.Close()
	for _, p := range c.places {
		if id, err := handle.GetNetNsIdByFd(p.ns.FD()); err == nil && id >= 0 {
			out[id] = p
		}
	}
	return out
}

// end describes the device of that index in the namespace of that id, where own
// are the links of the namespace that looks.
func (b neighbours) end(own []Link, nsid, index int) *End {
	end := &End{Index: index}
	links := own
	if nsid != here {
		links, end.Place = b.look(nsid)
	}
	for _, l := range links {
		if l.Index == index {
			end.Name, end.Kind, end.Mode, end.Master = l.Name, l.Kind, l.Mode, nameOf(links, l.MasterIndex)
		}
	}
	return end
}

func (b neighbours) look(nsid int) ([]Link, *Place) {
	if p := b.byNSID[nsid]; p != nil {
		place := p.Place
		place.NSID = nsid
		return p.list(), &place
	}
	links, ok := b.unseen[nsid]
	if !ok {
		// What can't be listed has no names.
		raws, _ := b.n.dumpLinks(nsid)
		for _, raw := range raws {
			links = append(links, newLink(raw))
		}
		b.unseen[nsid] = links
	}
	return links, &Place{NSID: nsid}
}

// nameOf is the name of the link with that index; or empty.
func nameOf(links []Link, index int) string {
	for _, l := range links {
		if index != 0 && l.Index == index {
			return l.Name
		}
	}
	return ""
}
