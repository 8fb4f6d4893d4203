// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"
	"slices"

	"mustang/internal/lab/labfile"
)

// Names of topologies.
const (
	TopologyPodLinks  = "pod-links"
	TopologyTwoHosts  = "two-hosts"
	TopologyPodToHost = "pod-to-host"
	// TopologyPodToNetwork is the only one that is connected to a network of this machine.
	TopologyPodToNetwork = "pod-to-network"
	// TopologyDocker has Docker on host-a.
	TopologyDocker = "docker"
	// TopologyNode starts without pods. CNI plugins add them.
	TopologyNode = "node"
	// TopologyFile is the topology of labs of a file. [Topologies] does not list it.
	TopologyFile = "file"
)

// Places: the names of hosts and pods in a lab.
const (
	Host = "host"
	PodA = "pod-a"
	PodB = "pod-b"
	// HostA and HostB are the hosts of labs with two of them.
	HostA = "host-a"
	HostB = "host-b"
	// Outside is the place that the uplink of a single host leads to.
	Outside = labfile.Outside
)

// Names of devices, and of the TCP congestion control.
const (
	// IfName is the pods' own device.
	IfName = "eth0"
	// Uplink is the host's device that leads out of it.
	Uplink = "uplink"
	// OutsideIfName is the peer of the uplink in [Outside].
	OutsideIfName = "wire"
	// Congestion is the congestion control, if the kernel has it: figures of machines with other defaults compare.
	Congestion = "cubic"
)

// HostIfName returns the name of the host's device of a pod's link.
func HostIfName(pod string) string { return "veth-" + pod }

// Topology is a kind of network that a lab can have.
type Topology struct {
	Name string // its name on the command line
	Doc  string // describes it in one line
	Link string // its usual link

	places []string // that can run commands
	build  func(context.Context, *Lab) error
}

// Topologies returns all topologies in the order of listings.
func Topologies() []Topology {
	return []Topology{
		{TopologyPodLinks, "one host with two pods, pod-a behind a service", "veth",
			[]string{Host, PodA, PodB}, buildPodLinks},
		{TopologyTwoHosts, "two hosts on a wire, pod-a on host-a and pod-b on host-b", "veth",
			[]string{HostA, HostB, PodA, PodB}, buildTwoHosts},
		{TopologyPodToHost, "two hosts on a wire, pod-b on host-b; host-a is a plain machine", "veth",
			[]string{HostA, HostB, PodB}, buildTwoHosts},
		{TopologyPodToNetwork, "pod-b on host-b, whose uplink is a macvlan of a device of this machine", "veth",
			[]string{HostB, PodB}, buildPodToNetwork},
		{TopologyDocker, "two hosts on a wire, host-a with Docker and three containers", dockerLink,
			[]string{HostA, HostB, ContainerA, ContainerB, ContainerHost}, buildDocker},
		{TopologyNode, "one host with an uplink and no pods, for CNI plugins", LinkHost,
			[]string{Host, Outside}, buildNode},
	}
}

func (o Options) topology() Topology {
	if o.File != nil {
		return Topology{Name: TopologyFile, places: o.File.Places(), build: buildFile}
	}
	for _, topology := range Topologies() {
		if topology.Name == o.Topology {
			return topology
		}
	}
	return Topology{}
}

// Addresses of labs. All labs have the same ones: no lab is connected to another.
var (
	// Gateways and the two below are of a single host and its pods.
	Gateways = []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")}
	PodAIPs  = []netip.Addr{netip.MustParseAddr("192.168.10.10"), netip.MustParseAddr("fd00:10::a")}
	PodBIPs  = []netip.Addr{netip.MustParseAddr("192.168.10.11"), netip.MustParseAddr("fd00:10::b")}
	// Underlay are the prefixes of the wire between two hosts, one per address family.
	Underlay = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}
	// Ranges are the pod prefixes of each host, in labs with two hosts whose pods are not on the addresses of the wire.
	Ranges = map[string][]netip.Prefix{
		HostA: {netip.MustParsePrefix("192.168.10.0/24"), netip.MustParsePrefix("fd00:10::/64")},
		HostB: {netip.MustParsePrefix("192.168.11.0/24"), netip.MustParsePrefix("fd00:11::/64")},
	}
)

// Addresses returns the addresses of a place, IPv4 first; none if the lab lacks the place.
func Addresses(o Options, place string) []netip.Addr {
	number, known := map[string]int{Host: 1, HostA: 1, ContainerHost: 1, HostB: 2, PodA: 10, PodB: 11}[place]
	isPod := number >= 10
	switch {
	case o.File != nil:
		return o.File.Addresses(place)
	case !slices.Contains(o.topology().places, place) || o.Topology == TopologyNode || isPod && o.hostsOnly():
		return nil
	case !known:
		return []netip.Addr{containerAddresses[place]}
	case o.Topology == TopologyPodToNetwork && !isPod:
		return []netip.Addr{o.Uplink.Host.Addr()}
	case o.Topology == TopologyPodToNetwork && !o.NAT:
		return []netip.Addr{o.Uplink.Pod.Addr()}
	case o.Topology == TopologyPodToNetwork:
		return numbered(networkPods, number)
	case o.Topology == TopologyPodLinks, isPod && o.hasOverlay() && !o.traits().Routed:
		return numbered(Ranges[HostA], number)
	case !isPod, o.podsOnWire():
		return numbered(Underlay, number)
	case place == PodA:
		return numbered(Ranges[HostA], number)
	}
	return numbered(Ranges[HostB], number)
}

func (o Options) hostsOnly() bool  { return o.Link == LinkHost || o.Link == LinkHostBridge }
func (o Options) hasOverlay() bool { return o.Overlay != "" && o.Overlay != OverlayNone }

func (o Options) podsOnWire() bool {
	return !o.hostsOnly() && !o.traits().Routed && !o.NAT && !o.hasOverlay()
}

func (o Options) isGuest(place string) bool { return o.Guests && (place == PodA || place == PodB) }

// numbered returns the address of that number in each prefix. Numbers above 9 have letters in IPv6: 10 is a.
func numbered(prefixes []netip.Prefix, number int) (addrs []netip.Addr) {
	for _, prefix := range prefixes {
		bytes := prefix.Masked().Addr().AsSlice()
		bytes[len(bytes)-1] = byte(number)
		addr, _ := netip.AddrFromSlice(bytes)
		addrs = append(addrs, addr)
	}
	return addrs
}

func numberedPrefixes(prefixes []netip.Prefix, number int) (out []netip.Prefix) {
	for i, addr := range numbered(prefixes, number) {
		out = append(out, netip.PrefixFrom(addr, prefixes[i].Bits()))
	}
	return out
}
