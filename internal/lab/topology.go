// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"mustang/internal/lb"
)

// Names of the places in a lab that commands can run in.
const (
	Host = "host"
	PodA = "pod-a"
	PodB = "pod-b"
)

// Addresses of a lab's pods and services. All labs have the same ones: no lab
// sees another.
var (
	Gateways = []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")}
	PodAIPs  = []netip.Addr{netip.MustParseAddr("192.168.10.10"), netip.MustParseAddr("fd00:10::a")}
	PodBIPs  = []netip.Addr{netip.MustParseAddr("192.168.10.11"), netip.MustParseAddr("fd00:10::b")}
)

// ServicePort is the port of the service and of its backend, iperf3's own.
const ServicePort = 5201

// Services returns the services that a lab has ready, one of each family, for
// TCP and UDP, with pod-a as their backend.
func Services() []lb.Service {
	frontends := []netip.Addr{netip.MustParseAddr("10.96.0.100"), netip.MustParseAddr("fd00:96::100")}
	var services []lb.Service
	for i, frontend := range frontends {
		services = append(services, lb.Service{
			Frontend: netip.AddrPortFrom(frontend, ServicePort),
			Protocol: lb.Any,
			Backends: []netip.AddrPort{netip.AddrPortFrom(PodAIPs[i], ServicePort)},
		})
	}
	return services
}

// Published are the services by which the host's port [PublishedPort] leads to pod-a,
// at the host's own address and at its loopback address. A lab of topology pod-links
// has them for sockets: via [ViaEBPFSocket].
func Published() []lb.Service {
	loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	var services []lb.Service
	for i, backend := range PodAIPs {
		for _, at := range []netip.Addr{Gateways[i].Addr(), loopback[i]} {
			services = append(services, lb.Service{
				Frontend: netip.AddrPortFrom(at, PublishedPort),
				Protocol: lb.Any,
				Backends: []netip.AddrPort{netip.AddrPortFrom(backend, ServicePort)},
			})
		}
	}
	return services
}

// Names of topologies.
const (
	TopologyPodLinks  = "pod-links"
	TopologyTwoHosts  = "two-hosts"
	TopologyPodToHost = "pod-to-host"
	// TopologyPodToNetwork is the only one that is joined to a network of this machine.
	TopologyPodToNetwork = "pod-to-network"
)

// Topology is a shape of network that a lab can have.
type Topology struct {
	// Name is what users call it.
	Name string
	// Doc says in one line what is in it.
	Doc string
	// places are where commands can run.
	places []string
	// check refuses what makes no sense in it, by the name of the setting.
	check func(Options) error
	build func(context.Context, *Lab) error
}

// Topologies returns all topologies, in the order in which they are listed.
func Topologies() []Topology {
	return []Topology{
		{
			Name:   TopologyPodLinks,
			Doc:    "one host with two pods, pod-a behind a service",
			places: []string{Host, PodA, PodB},
			check:  checkPodLinks,
			build:  buildPodLinks,
		},
		{
			Name:   TopologyTwoHosts,
			Doc:    "two hosts on a wire, pod-a on host-a and pod-b on host-b",
			places: []string{HostA, HostB, PodA, PodB},
			check:  checkTwoHosts,
			build:  buildTwoHosts,
		},
		{
			Name:   TopologyPodToHost,
			Doc:    "two hosts on a wire, pod-b on host-b; host-a is a plain machine",
			places: []string{HostA, HostB, PodB},
			check:  checkPodToHost,
			build:  buildTwoHosts,
		},
		{
			Name:   TopologyPodToNetwork,
			Doc:    "pod-b on host-b, whose uplink is a macvlan of a device of this machine",
			places: []string{HostB, PodB},
			check:  checkPodToNetwork,
			build:  buildPodToNetwork,
		},
		{
			Name:   TopologyDocker,
			Doc:    "two hosts on a wire, host-a with Docker and three containers",
			places: []string{HostA, HostB, ContainerA, ContainerB, ContainerHost},
			check:  Options.checkDocker,
			build:  buildDocker,
		},
		{
			Name:   TopologyNode,
			Doc:    "one host with an uplink and no pods, for CNI plugins",
			places: []string{Host, Outside},
			check:  checkNode,
			build:  buildNode,
		},
	}
}

func topologyNames() []string {
	var names []string
	for _, topology := range Topologies() {
		names = append(names, topology.Name)
	}
	return names
}
