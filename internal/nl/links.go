// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links returns the devices in n, sorted by index, with all that is known of
// them and of what they are joined to in other namespaces. It changes nothing,
// except that the kernel gives namespaces ids when it is asked about devices in
// them.
func (c *Census) Links(n *Namespace) ([]Link, error) {
	links, err := n.links()
	if err != nil {
		return nil, err
	}
	handle, err := n.Netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	addrs, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", n.Name(), err)
	}
	addAddresses(links, addrs)
	names := make([]string, len(links))
	for i, link := range links {
		names[i] = link.Name
	}
	hardware, err := n.hardware(names)
	if err != nil {
		return nil, err
	}
	for i := range links {
		links[i].Hardware = hardware[links[i].Name]
	}
	addFilters(handle, links)
	n.addNamespaceCalls(links)
	c.join(n, links)
	c.joinSwitches(n, links)
	if err := c.addChildren(n, links); err != nil {
		return nil, err
	}
	return links, nil
}

// links reads what one dump of n's links tells.
func (n *Namespace) links() ([]Link, error) {
	raws, err := n.dumpLinks(here)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(raws))
	for _, raw := range raws {
		links = append(links, newLink(raw))
	}
	sortLinks(links)
	return links, nil
}

// addAddresses gives each link its addresses.
func addAddresses(links []Link, addrs []netlink.Addr) {
	byIndex := map[int][]netip.Prefix{}
	for _, addr := range addrs {
		byIndex[addr.LinkIndex] = append(byIndex[addr.LinkIndex], prefix(addr.IPNet))
	}
	for i := range links {
		links[i].Addrs = byIndex[links[i].Index]
	}
}

func sortLinks(links []Link) {
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
}
