// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"

	"mustang/internal/lab/labfile"
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

// Places of topology docker, in addition to the two hosts.
const (
	// ContainerA is on Docker's bridge. host-a publishes its [ServicePort] as [PublishedPort].
	ContainerA = "container-a"
	// ContainerB is on the same bridge.
	ContainerB = "container-b"
	// ContainerHost is in the network namespace of host-a.
	ContainerHost = "container-host"
)

// PublishedPort is the port of host-a that leads to container-a's [ServicePort], for TCP and UDP on all addresses.
const PublishedPort = 6201

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

// networkPods is the prefix of host-b's pod in topology pod-to-network with NAT. It is reserved for benchmarks (RFC
// 2544, appendix C.2.2), so that the network of the uplink hardly uses it.
var networkPods = []netip.Prefix{netip.MustParsePrefix("198.18.11.0/24")}

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
