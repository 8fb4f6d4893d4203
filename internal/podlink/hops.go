// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"slices"
)

// linkHops returns the next hops of a pod that routes over Ethernet, one for each
// family that the pod has. Every host end has the same, so that no pod needs one
// of its own.
func linkHops(pod Pod) []netip.Addr {
	hops := map[bool]netip.Addr{
		true:  netip.AddrFrom4([4]byte{169, 254, 1, 1}),
		false: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1}),
	}
	var out []netip.Addr
	for _, addr := range pod.Addresses {
		if hop := hops[addr.Is4()]; !slices.Contains(out, hop) {
			out = append(out, hop)
		}
	}
	return out
}

// hostAddrs are the pod's next hops, as the host's end has them.
func (r routed) hostAddrs(pod Pod) []netip.Prefix {
	if r.layer3 {
		return nil
	}
	var addrs []netip.Prefix
	for _, hop := range linkHops(pod) {
		bits := 64
		if hop.Is4() {
			bits = 32
		}
		addrs = append(addrs, netip.PrefixFrom(hop, bits))
	}
	return addrs
}

func (r routed) hostSettings(pod Pod) []setting {
	if r.layer3 {
		return layer3Device(pod.HostIfName, pod.alone())
	}
	return append(device(pod.HostIfName, r.hostAddrs(pod)),
		setting{"net/ipv4/conf/" + pod.HostIfName + "/proxy_arp", "1"},
		setting{"net/ipv4/neigh/" + pod.HostIfName + "/proxy_delay", "0"})
}

func (r routed) interior(network Network, pod Pod) interior {
	out := interior{
		kind: r.wiring.kind(), mtu: network.mtu(), addrs: pod.alone(), relayed: relayed(r.wiring), layer3: r.layer3,
	}
	if !r.layer3 {
		out.hops = linkHops(pod)
	}
	return out.withRoutes(network, pod, false)
}

// podRoutes are the host's routes to a pod, one for each address. The host's own
// packets come from its gateway address.
func podRoutes(network Network, pod Pod) []route {
	var routes []route
	for _, addr := range pod.Addresses {
		gateway, _ := network.gateway(addr)
		routes = append(routes, route{dst: single(addr), src: gateway.Addr()})
	}
	return routes
}
