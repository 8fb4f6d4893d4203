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

func (h host) remotes(want plan, have map[route]netlink.Route, port uint16) (ways []Remote, err error) {
	devices, err := h.Devices()
	if err != nil {
		return nil, fmt.Errorf("ways to other nodes: %w", err)
	}
	mtus, ends := h.mtus(devices), map[netip.Addr]*peer{}
	for i := range want.peers {
		for _, hop := range want.peers[i].hops {
			ends[hop] = &want.peers[i]
		}
	}
	tunnel := slices.IndexFunc(devices, func(d rtnl.Device) bool { return d.Name == DeviceName })
	for _, r := range want.routes {
		if _, there := have[r]; !there {
			continue
		}
		w := Remote{Range: r.dst, NextHop: r.via, IfIndex: r.device}
		if tunnel < 0 || r.device != devices[tunnel].Index {
			w.MTU = mtus[r.device]
		} else {
			end := ends[r.via]
			if end == nil {
				continue // somebody else's route to the node leads into the tunnel
			}
			w.Node, w.Local, w.NodeMAC, w.LocalMAC = end.underlay, want.local, end.mac, want.mac
			w.VNI, w.Port = networkID, port
			w.NextHop, w.IfIndex, w.MTU = h.hop(mtus, w.Local, w.Node)
			w.MTU = min(w.MTU-Overhead(w.Local), devices[tunnel].MTU)
		}
		if w.MTU > 0 {
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// hop returns the next hop between two addresses, the device and the MTU; an MTU of 0: programs cannot go that way.
func (h host) hop(mtus map[int]int, from, to netip.Addr) (via netip.Addr, device, mtu int) {
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
	mtu = mtus[r.LinkIndex]
	if r.MTU > 0 {
		mtu = min(mtu, r.MTU)
	}
	return via, r.LinkIndex, mtu
}

// mtus returns the MTUs of devices that find neighbours by MAC address, by index.
func (h host) mtus(devices []rtnl.Device) map[int]int {
	of := map[int]int{}
	for _, d := range devices {
		link, err := h.LinkByIndex(d.Index)
		if err == nil && len(d.MAC) == 6 && d.Kind != "loopback" &&
			link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT) == 0 {
			of[d.Index] = d.MTU
		}
	}
	return of
}
