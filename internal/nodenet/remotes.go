// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// Remote is the way to a range of pods of another node, for programs that bypass the stacks of both hosts.
type Remote struct {
	Range   netip.Prefix
	NextHop netip.Addr // on the network of the device: the node, or a router
	IfIndex int        // the host's device that leads to NextHop
	MTU     int        // bytes of an IP packet of a pod
	// Node and Local are the ends of the VXLAN tunnel, and NodeMAC and LocalMAC the MAC addresses of its devices. Not
	// valid: packets are sent as they are.
	Node, Local       netip.Addr
	NodeMAC, LocalMAC net.HardwareAddr
	VNI               uint32
	Port              uint16 // the UDP port of VXLAN; it and VNI are the same for all nodes
}

func (h host) remotes(want plan, have []ownRoute, port uint16) (ways []Remote, err error) {
	devices, err := h.Devices()
	if err != nil {
		return nil, fmt.Errorf("ways to other nodes: %w", err)
	}
	tunnel := slices.IndexFunc(devices, func(d rtnl.Device) bool { return d.Name == DeviceName })
	for _, r := range want.routes {
		if !slices.ContainsFunc(have, func(o ownRoute) bool { return o.route == r }) {
			continue
		}
		w := Remote{Range: r.dst, NextHop: r.via, IfIndex: r.device}
		if tunnel < 0 || r.device != devices[tunnel].Index {
			w.MTU = h.mtuOf(devices, r.device)
		} else {
			i := slices.IndexFunc(want.peers, func(p peer) bool { return slices.Contains(p.hops, r.via) })
			if i < 0 {
				continue // somebody else's route to the node leads into the tunnel
			}
			w.Node, w.Local, w.NodeMAC, w.LocalMAC = want.peers[i].underlay, want.local, want.peers[i].mac, want.mac
			w.VNI, w.Port = networkID, port
			w.NextHop, w.IfIndex, w.MTU = h.hop(devices, w.Local, w.Node)
			w.MTU = min(w.MTU-overhead(w.Local), devices[tunnel].MTU)
		}
		if w.MTU > 0 {
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// hop returns the next hop between two addresses, the device and the MTU; an MTU of 0: programs cannot go that way.
func (h host) hop(devices []rtnl.Device, from, to netip.Addr) (via netip.Addr, device, mtu int) {
	options := netlink.RouteGetOptions{SrcAddr: from.AsSlice()}
	routes, err := h.RouteGetWithOptions(to.AsSlice(), &options)
	options.FIBMatch = true
	rules, ruleErr := h.RouteGetWithOptions(to.AsSlice(), &options)
	if err != nil || ruleErr != nil || len(routes) != 1 || len(rules) != 1 || len(rules[0].MultiPath) > 0 {
		return to, 0, 0
	}
	r := routes[0]
	if r.Type != unix.RTN_UNICAST || r.Via != nil || r.Encap != nil {
		return to, 0, 0
	}
	if via = to; r.Gw != nil {
		via, _ = netip.AddrFromSlice(r.Gw)
		via = via.Unmap()
	}
	mtu = h.mtuOf(devices, r.LinkIndex)
	if r.MTU > 0 {
		mtu = min(mtu, r.MTU)
	}
	return via, r.LinkIndex, mtu
}

// mtuOf returns the MTU of a device that finds neighbours by MAC address; 0 for another one.
func (h host) mtuOf(devices []rtnl.Device, index int) int {
	i := slices.IndexFunc(devices, func(d rtnl.Device) bool { return d.Index == index })
	if i < 0 || len(devices[i].MAC) != 6 || devices[i].Kind == "loopback" {
		return 0
	}
	link, err := h.LinkByIndex(index)
	if err != nil || link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT) != 0 {
		return 0
	}
	return devices[i].MTU
}
