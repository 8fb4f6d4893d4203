// SPDX-License-Identifier: Apache-2.0

package nl

// addChildren finds the devices in other namespaces that sit on links of n.
func (c *Census) addChildren(n *Namespace, links []Link) error {
	inode, err := n.Inode()
	if err != nil {
		return err
	}
	byIndex := map[int]*Link{}
	for i := range links {
		byIndex[links[i].Index] = &links[i]
	}
	for _, p := range c.places {
		if p.Inode == inode {
			continue
		}
		for _, child := range p.over(n) {
			if parent := byIndex[child.ParentIndex]; parent != nil {
				place := p.Place
				parent.Children = append(parent.Children, End{
					Name: child.Name, Kind: child.Kind, Mode: child.Mode, Index: child.Index, Place: &place,
				})
			}
		}
	}
	return nil
}

// over returns the links of a place whose parents are in n.
func (p *inhabited) over(n *Namespace) []Link {
	var out []Link
	id := here
	for _, l := range p.list() {
		if l.ParentIndex == 0 || l.PeerNSID == here {
			continue
		}
		if id == here {
			handle, err := p.ns.Netlink()
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
