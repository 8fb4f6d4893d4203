// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// protocol is the protocol number of our routes (rtnetlink(7), rtm_protocol). iproute2 does not name it.
const protocol = 109

type host struct {
	*netlink.Handle
	rtnl.Conn
}

// segment returns the device that reaches an address without a router; 0: none.
func (h host) segment(a netip.Addr) int {
	routes, err := h.RouteGet(a.AsSlice())
	if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_UNICAST || routes[0].Gw != nil ||
		routes[0].Via != nil {
		return 0
	}
	return routes[0].LinkIndex
}

// segmentOf returns segment for a node with routing. With Auto the other node decides too, by this node's address. Both
// are on one segment only if the device that leads there has this address, or the prefix of this address contains the
// other, or no device has this address. Devices without neighbours, such as VPNs, ignore the next hop.
func (h host) segmentOf(self Node, routing Routing) (func(netip.Addr) int, error) {
	if routing != Auto {
		return h.segment, nil
	}
	devices, err := h.Devices()
	if err != nil {
		return nil, err
	}
	own := map[netip.Prefix]int{} // by address, the device
	for _, d := range devices {
		for _, p := range d.Addrs {
			if slices.Contains(self.Addresses, p.Addr()) {
				own[p] = d.Index
			}
		}
	}
	return func(a netip.Addr) int {
		device := h.segment(a)
		known, same := false, false
		for p, at := range own {
			if p.Addr().Is4() == a.Is4() {
				known, same = true, same || at == device || p.Contains(a)
			}
		}
		if device == 0 || known && !same {
			return 0
		}
		link, err := h.LinkByIndex(device)
		if err != nil || link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT) != 0 {
			return 0
		}
		return device
	}, nil
}

// underlay returns the device with an address of this node. If that is loopback, it returns the default route's device.
func (h host) underlay(local netip.Addr) (rtnl.Device, error) {
	devices, err := h.Devices()
	if err != nil {
		return rtnl.Device{}, err
	}
	i := slices.IndexFunc(devices, func(d rtnl.Device) bool {
		return slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return p.Addr() == local })
	})
	if i < 0 {
		return rtnl.Device{}, fmt.Errorf("no device of this node has the address %v", local)
	}
	if devices[i].Kind != "loopback" {
		return devices[i], nil
	}
	name, err := h.DefaultDevice()
	if err != nil {
		return rtnl.Device{}, err
	}
	return h.Device(name)
}

// shut adds the routes of a plan that refuse packets.
func (h host) shut(want plan) error {
	have, err := h.routes()
	for _, r := range want.routes {
		if _, there := have[r]; !there && r.device == nowhere {
			err = errors.Join(err, h.addRoute(r))
		}
	}
	return err
}

// apply changes the kernel's state to a plan. It adds what a route needs before the route.
func (h host) apply(want plan) error {
	vxlan, err := h.device()
	if err != nil {
		return err
	}
	wireguard, err := h.wireguard()
	if err != nil {
		return err
	}
	device := vxlan
	if want.encrypted {
		device = wireguard
	}
	for i := range want.routes {
		if want.routes[i].device == 0 {
			want.routes[i].device = device.index
		}
	}
	have, err := h.routes()
	if err != nil {
		return err
	}
	var errs []error
	wanted := map[route]bool{}
	for _, r := range want.routes {
		wanted[r] = true
	}
	for r, kernel := range have {
		if !wanted[r] && !(want.left && r.device == device.index) {
			if err := h.RouteDel(&kernel); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("delete route to %v via %v: %w", r.dst, r.via, err))
			}
		}
	}
	if vxlan.index != 0 && !want.tunnel {
		errs = append(errs, h.deleteDevice(vxlan))
	}
	if wireguard.index != 0 && !want.encrypted {
		errs = append(errs, h.deleteDevice(wireguard))
	}
	if want.tunnel && !want.left {
		errs = append(errs, h.setPeers(device.index, want.peers))
	}
	for _, r := range want.routes {
		if _, there := have[r]; !there {
			errs = append(errs, h.addRoute(r))
		}
	}
	return errors.Join(errs...)
}

// routes returns the agent's own routes.
func (h host) routes() (map[route]netlink.Route, error) {
	own := map[route]netlink.Route{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := rtnl.Dump(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes to pods of other nodes: %w", err)
		}
		for _, r := range routes {
			via, _ := netip.AddrFromSlice(r.Gw)
			at := route{rtnl.Prefix(r.Dst), via.Unmap(), r.LinkIndex}
			if r.Type == unix.RTN_UNREACHABLE {
				at.device = nowhere
			}
			own[at] = r
		}
	}
	return own, nil
}

// ErrOtherRoute means that another program has a route to a range. With WireGuard, nftables drops packets that take it.
var ErrOtherRoute = errors.New("one exists and is not the agent's")

func (h host) addRoute(r route) error {
	add := netlink.Route{LinkIndex: r.device, Dst: rtnl.DeviceAddress(r.dst).IPNet, Gw: r.via.AsSlice(),
		Protocol: protocol}
	switch {
	case r.device == nowhere:
		add.LinkIndex, add.Type, add.Priority = 0, unix.RTN_UNREACHABLE, math.MaxInt32
	case !r.via.IsValid() && r.dst.Addr().Is6():
		add.Priority = 1 // before routes of router advertisements
	case r.via.IsValid():
		add.Flags = int(netlink.FLAG_ONLINK)
	}
	err := h.RouteAdd(&add)
	if errors.Is(err, unix.EEXIST) {
		err = ErrOtherRoute
	}
	if err != nil {
		return fmt.Errorf("add route to %v via %v: %w", r.dst, r.via, err)
	}
	return nil
}

// lasting leaves out networks whose IPv6 address expires and that lack an address of the node: anybody on a segment can
// send the router advertisement for one.
func (h host) lasting(networks []netip.Prefix, self Node) ([]netip.Prefix, error) {
	addrs, err := rtnl.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V6) })
	return slices.DeleteFunc(networks, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(self.Addresses, p.Contains) && slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
			return a.Flags&unix.IFA_F_PERMANENT == 0 && rtnl.Prefix(a.IPNet) == p
		})
	}), err
}
