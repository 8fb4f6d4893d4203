// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"

	"mustang/internal/podlink"
)

// Names of the places in labs with two hosts.
const (
	HostA = "host-a"
	HostB = "host-b"
)

// Underlay are the prefixes of the wire between two hosts, of both families.
var Underlay = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}

// Ranges are the prefixes of each host's own pods, in labs with two hosts whose
// pods are not on the wire.
var Ranges = map[string][]netip.Prefix{
	HostA: {netip.MustParsePrefix("192.168.10.0/24"), netip.MustParsePrefix("fd00:10::/64")},
	HostB: {netip.MustParsePrefix("192.168.11.0/24"), netip.MustParsePrefix("fd00:11::/64")},
}

// Addresses returns where a place of a lab with these options is reached, IPv4
// first; none if there is no such place.
func Addresses(o Options, place string) []netip.Addr {
	switch o.Topology {
	case TopologyPodLinks:
		return map[string][]netip.Addr{Host: {Gateways[0].Addr(), Gateways[1].Addr()}, PodA: PodAIPs, PodB: PodBIPs}[place]
	case TopologyTwoHosts:
		return o.twoHostsAddresses(place)
	case TopologyPodToHost:
		if place != PodA {
			return o.twoHostsAddresses(place)
		}
	case TopologyPodToNetwork:
		return o.podToNetworkAddresses(place)
	case TopologyDocker:
		return dockerAddresses(place)
	}
	return nil
}

func (o Options) twoHostsAddresses(place string) []netip.Addr {
	number := map[string]int{HostA: 1, HostB: 2, PodA: 10, PodB: 11}[place]
	switch {
	case number == 0:
		return nil
	case place == HostA || place == HostB:
		return both(Underlay, number)
	case o.hostsOnly():
		return nil
	case o.overlaid():
		return both(Ranges[HostA], number)
	case o.onTheWire():
		return both(Underlay, number)
	case place == PodA:
		return both(Ranges[HostA], number)
	default:
		return both(Ranges[HostB], number)
	}
}

// hostsOnly reports whether there are no pods.
func (o Options) hostsOnly() bool { return o.Link == LinkHost || o.Link == LinkHostBridge }

// overlaid reports whether the pods' segments are joined by VXLAN.
func (o Options) overlaid() bool { return o.Overlay != "" && o.Overlay != OverlayNone }

// onTheWire reports whether the pods of two hosts have addresses of the wire.
func (o Options) onTheWire() bool {
	mode, err := podlink.Lookup(o.Link)
	return err == nil && !mode.Routed() && !o.NAT && !o.overlaid()
}

// both are the addresses of that number in each prefix. Pods have letters in
// IPv6, where 10 is a.
func both(prefixes []netip.Prefix, number int) []netip.Addr {
	var addrs []netip.Addr
	for _, prefix := range prefixes {
		bytes := prefix.Masked().Addr().AsSlice()
		bytes[len(bytes)-1] = byte(number)
		addr, _ := netip.AddrFromSlice(bytes)
		addrs = append(addrs, addr)
	}
	return addrs
}

// within are addresses with the prefix length of their network.
func within(prefixes []netip.Prefix, number int) []netip.Prefix {
	var out []netip.Prefix
	for i, addr := range both(prefixes, number) {
		out = append(out, netip.PrefixFrom(addr, prefixes[i].Bits()))
	}
	return out
}
