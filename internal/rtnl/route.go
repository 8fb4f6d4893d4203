// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddDefaultRoutes adds a default route via each next hop over a device that is up. Next hops count as on-link,
// whatever addresses the device has.
func (c Conn) AddDefaultRoutes(device string, hops []netip.Addr) error {
	handle, err := c.Handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %q in network namespace %q: %w", device, c.ns.Name(), err)
	}
	for _, hop := range hops {
		everywhere := &net.IPNet{IP: make(net.IP, hop.BitLen()/8), Mask: make(net.IPMask, hop.BitLen()/8)}
		err := handle.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: everywhere, Gw: hop.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return fmt.Errorf("add default route via %v by device %q in network namespace %q: %w", hop, device, c.ns.Name(), err)
		}
	}
	return nil
}

// DefaultDevice returns the device of the IPv4 default route with the lowest metric, or of the IPv6 one if there is
// none. The error matches fs.ErrNotExist if there is neither.
func (c Conn) DefaultDevice() (string, error) {
	handle, err := c.Handle()
	if err != nil {
		return "", err
	}
	defer handle.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return "", fmt.Errorf("list default routes in network namespace %q: %w", c.ns.Name(), err)
		}
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
		for _, route := range routes {
			if route.LinkIndex == 0 {
				continue // several next hops, or unreachable
			}
			link, err := handle.LinkByIndex(route.LinkIndex)
			if err != nil {
				return "", fmt.Errorf("device of the default route in network namespace %q: %w", c.ns.Name(), err)
			}
			return link.Attrs().Name, nil
		}
	}
	return "", fmt.Errorf("default route in network namespace %q: %w", c.ns.Name(), fs.ErrNotExist)
}

// AdvertisedDevices returns the names of the devices that have routes or addresses of router advertisements, which the kernel
// has taken.
func (c Conn) AdvertisedDevices() (names []string, err error) {
	handle, err := c.Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	routes, err := Dump(func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list advertised routes in network namespace %q: %w", c.ns.Name(), err)
	}
	addresses, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_V6) })
	if err != nil {
		return nil, fmt.Errorf("list advertised addresses in network namespace %q: %w", c.ns.Name(), err)
	}
	var devices []int
	for _, route := range routes {
		devices = append(devices, route.LinkIndex)
	}
	for _, addr := range addresses {
		if addr.Flags&unix.IFA_F_MANAGETEMPADDR != 0 { // it is made of an advertised prefix (RFC 4862)
			devices = append(devices, addr.LinkIndex)
		}
	}
	for _, index := range devices {
		link, err := handle.LinkByIndex(index)
		if err == nil && !slices.Contains(names, link.Attrs().Name) {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, nil
}

// AddProxyNeighbor makes the namespace answer ARP requests for an IPv4 address on the network of a device, without
// delay. The namespace must forward and have a route to the address over another device.
func (c Conn) AddProxyNeighbor(device string, addr netip.Addr) error {
	fail := func(err error) error {
		return fmt.Errorf("add proxy neighbor %v to device %q in network namespace %q: %w", addr, device, c.ns.Name(), err)
	}
	if !addr.Is4() {
		return fail(errors.New("not an IPv4 address"))
	}
	if err := c.SetSysctl("net/ipv4/neigh/"+device+"/proxy_delay", "0"); err != nil {
		return fail(err)
	}
	handle, err := c.Handle()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fail(err)
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY, IP: addr.AsSlice()}
	if err := handle.NeighAdd(entry); err != nil {
		return fail(err)
	}
	return nil
}

// AddRoute adds a route to dst via a next hop on a connected network.
func (c Conn) AddRoute(dst netip.Prefix, via netip.Addr) error {
	fail := func(err error) error {
		return fmt.Errorf("add route to %v via %v in network namespace %q: %w", dst, via, c.ns.Name(), err)
	}
	handle, err := c.Handle()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	route := &netlink.Route{
		Dst: &net.IPNet{IP: dst.Masked().Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  via.AsSlice(),
	}
	if err := handle.RouteAdd(route); err != nil {
		return fail(err)
	}
	return nil
}
