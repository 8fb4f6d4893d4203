// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// AddDefaultRoutes adds a default route via each next hop over a device that is up. Next hops count as on-link,
// whatever addresses the device has.
func (c Conn) AddDefaultRoutes(device string, hops []netip.Addr) error {
	return c.OnDevice("add default routes by ", device, func(handle *netlink.Handle, link netlink.Link) error {
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

// AdvertisedDevices returns the names of the devices that have routes or addresses of router advertisements, which the
// kernel has taken.
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
	return c.OnDevice(try, device, func(handle *netlink.Handle, link netlink.Link) error {
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
	err := c.with(func(h *netlink.Handle) error { return h.RouteAdd(route) })
	return c.failed(err, "add route to %v via %v", dst, via)
}

// NextHops returns the next hops of the routes of all tables.
func (c Conn) NextHops() (hops []netip.Addr, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(c, "routes", allRoutes(family))
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			for _, via := range append(r.MultiPath, &netlink.NexthopInfo{Gw: r.Gw}) {
				if hop, ok := netip.AddrFromSlice(via.Gw); ok {
					hops = append(hops, hop.Unmap())
				}
			}
		}
	}
	return hops, nil
}

// WriteTables writes the devices, the addresses, the routes of all tables, the rules and the neighbours of the
// namespace, a line each. What cannot be read is left out, and is the error.
func (c Conn) WriteTables(w io.Writer) error {
	names := map[int]string{}
	links, err := dump(c, "devices", (*netlink.Handle).LinkList)
	errs := []error{err}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		fmt.Fprintf(w, "link %d %q %s mtu %d %s %s master %d flags %s\n",
			a.Index, a.Name, l.Type(), a.MTU, a.OperState, a.HardwareAddr, a.MasterIndex, a.Flags)
	}
	addresses, err := dump(c, "addresses", allAddresses)
	errs = append(errs, err)
	for _, a := range addresses {
		fmt.Fprintf(w, "address %s dev %q scope %d flags %#x\n", a.IPNet, names[a.LinkIndex], a.Scope, a.Flags)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := dump(c, "routes", allRoutes(family))
		errs = append(errs, err)
		for _, r := range routes {
			fmt.Fprintf(w, "route %v via %v dev %q src %v table %d protocol %d metric %d type %d\n",
				r.Dst, r.Gw, names[r.LinkIndex], r.Src, r.Table, r.Protocol, r.Priority, r.Type)
		}
		rules, err := dump(c, "rules", func(h *netlink.Handle) ([]netlink.Rule, error) { return h.RuleList(family) })
		errs = append(errs, err)
		for _, r := range rules {
			fmt.Fprintf(w, "rule %s\n", r)
		}
	}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		neighbours, err := dump(c, "neighbours", func(h *netlink.Handle) ([]netlink.Neigh, error) {
			return h.NeighList(0, family)
		})
		errs = append(errs, err)
		for _, n := range neighbours {
			fmt.Fprintf(w, "neighbour %s at %s dev %q family %d state %#x flags %#x\n",
				n.IP, n.HardwareAddr, names[n.LinkIndex], family, n.State, n.Flags)
		}
	}
	return errors.Join(errs...)
}

// Watch notifies of changes of devices, addresses and routes of the namespace until the context ends: the channel, of
// capacity one, has a value after them. The kernel does not report IPv4 routes that vanish with a device or an address.
func (c Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	socket, err := netns.Get(c.ns, func() (*vnl.NetlinkSocket, error) {
		return vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	})
	if err == nil {
		err = socket.SetReceiveTimeout(&unix.Timeval{Usec: 200_000}) // closing it would not wake a reader
	}
	if err != nil {
		return nil, fmt.Errorf("watch network namespace %q: %w", c.ns.Name(), err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer socket.Close()
		for ctx.Err() == nil {
			if _, _, err := socket.Receive(); errors.Is(err, unix.EAGAIN) {
				continue
			}
			// Errors are that some were lost.
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}

// SetCongestion makes a TCP congestion control the default of the namespace's connections along its current routes.
// Exception: IPv6 routes to the namespace itself, which the kernel does not change. A namespace's sysctl accepts only
// congestion controls that the machine allows to all users; a route accepts any. Programs can still choose another
// one. If the kernel lacks it, the error matches errors.ErrUnsupported.
func (c Conn) SetCongestion(name string) error {
	if err := tryCongestion(name); err != nil {
		return fmt.Errorf("congestion control %s: %w", name, err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(c, "routes", allRoutes(family))
		if err != nil {
			return err
		}
		for _, route := range routes {
			local := route.Type == unix.RTN_LOCAL && family == netlink.FAMILY_V4
			if route.Type != unix.RTN_UNICAST && !local || route.Congctl == name {
				continue
			}
			route.Congctl = name
			route.Flags &^= unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN // which the kernel reports, but does not accept
			if err := c.with(func(h *netlink.Handle) error { return h.RouteChange(&route) }); err != nil {
				return c.failed(err, "set congestion control %s of route %v", name, route)
			}
		}
	}
	return nil
}

// tryCongestion makes a socket use a congestion control. The answer to a route is less precise.
func tryCongestion(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return AsUnsupported(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name))
}
