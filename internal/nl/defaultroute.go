// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// AddDefaultRoutes adds default routes by a device in n that is up, one for each
// next hop. Next hops are taken as directly reachable, whatever addresses the
// device has.
func (n *Namespace) AddDefaultRoutes(device string, hops []netip.Addr) error {
	handle, err := n.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %q in network namespace %q: %w", device, n.Name(), err)
	}
	for _, hop := range hops {
		everywhere := &net.IPNet{IP: make(net.IP, hop.BitLen()/8), Mask: make(net.IPMask, hop.BitLen()/8)}
		err := handle.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: everywhere, Gw: hop.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return fmt.Errorf("add default route via %v by device %q in network namespace %q: %w", hop, device, n.Name(), err)
		}
	}
	return nil
}

// DefaultDevice is the name of the device of n's default route: that of IPv4 with
// the lowest metric, or of IPv6 if there is none. The error matches fs.ErrNotExist
// if there is neither.
func (n *Namespace) DefaultDevice() (string, error) {
	handle, err := n.Netlink()
	if err != nil {
		return "", err
	}
	defer handle.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return "", fmt.Errorf("list default routes in network namespace %q: %w", n.Name(), err)
		}
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
		for _, route := range routes {
			if route.LinkIndex == 0 {
				continue // several next hops, or unreachable
			}
			link, err := handle.LinkByIndex(route.LinkIndex)
			if err != nil {
				return "", fmt.Errorf("device of the default route in network namespace %q: %w", n.Name(), err)
			}
			return link.Attrs().Name, nil
		}
	}
	return "", fmt.Errorf("default route in network namespace %q: %w", n.Name(), fs.ErrNotExist)
}
