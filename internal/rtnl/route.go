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
	return c.onDevice("add default routes by ", device, func(handle *netlink.Handle, link netlink.Link) error {
		for _, hop := range hops {
			everywhere := &net.IPNet{IP: make(net.IP, hop.BitLen()/8), Mask: make(net.IPMask, hop.BitLen()/8)}
			err := handle.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Dst: everywhere, Gw: hop.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			})
			if err != nil {
				return fmt.Errorf("add default route via %v: %w", hop, err)
			}
		}
		return nil
	})
}

// DefaultDevice returns the device of the IPv4 default route with the lowest metric, or of the IPv6 one if there is
// none. The error matches fs.ErrNotExist if there is neither.
func (c Conn) DefaultDevice() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(c, "default routes", func(h *netlink.Handle) ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
		})
		if err != nil {
			return "", err
		}
		slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
		for _, route := range routes {
			if route.LinkIndex == 0 {
				continue // several next hops, or unreachable
			}
			device, err := c.DeviceByIndex(route.LinkIndex)
			if err != nil {
				err = fmt.Errorf("default route: %w", err)
			}
			return device.Name, err
		}
	}
	return "", fmt.Errorf("default route in network namespace %q: %w", c.ns.Name(), fs.ErrNotExist)
}

// AdvertisedDevices returns the names of the devices that have routes or addresses of router advertisements, which the kernel
// has taken.
func (c Conn) AdvertisedDevices() (names []string, err error) {
	routes, err := dump(c, "advertised routes", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, err
	}
	addresses, err := dump(c, "advertised addresses", allAddresses)
	if err != nil {
		return nil, err
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
		if device, err := c.DeviceByIndex(index); err == nil && !slices.Contains(names, device.Name) {
			names = append(names, device.Name)
		}
	}
	return names, nil
}

// AddProxyNeighbor makes the namespace answer ARP requests for an IPv4 address on the network of a device, without
// delay. The namespace must forward and have a route to the address over another device.
func (c Conn) AddProxyNeighbor(device string, addr netip.Addr) error {
	try := fmt.Sprintf("add proxy neighbor %v to ", addr)
	return c.onDevice(try, device, func(handle *netlink.Handle, link netlink.Link) error {
		if !addr.Is4() {
			return errors.New("not an IPv4 address")
		}
		if err := c.SetSysctl("net/ipv4/neigh/"+device+"/proxy_delay", "0"); err != nil {
			return err
		}
		return handle.NeighAdd(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY, IP: addr.AsSlice(),
		})
	})
}

// AddRoute adds a route to dst via a next hop on a connected network.
func (c Conn) AddRoute(dst netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{
		Dst: &net.IPNet{IP: dst.Masked().Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  via.AsSlice(),
	}
	if err := c.with(func(h *netlink.Handle) error { return h.RouteAdd(route) }); err != nil {
		return fmt.Errorf("add route to %v via %v in network namespace %q: %w", dst, via, c.ns.Name(), err)
	}
	return nil
}
