// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// interfaces compares the virtual network interfaces of one host with each other,
// as article 000 does.
func interfaces() Suite {
	s := Suite{
		Name:      "interfaces",
		Doc:       "the virtual network interfaces of one host: loopback, veth, bridge, Docker, TUN",
		workloads: []workload{tcpStreams(1)},
	}
	loopback := onHost("loopback", netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	loopback.target = result.TargetLoopback
	s.addBaseline(loopback)
	toHost := dockerPath("container-to-host", lab.ContainerB, lab.HostA)
	toHost.target = result.TargetHostIP
	toHost.route = &route{hops: append(outOfContainer(), in(lab.HostA, dockerBridge))}
	for _, p := range []path{
		onHost("host-ip", lab.Addresses(lab.Options{Topology: twoHosts, Link: "host"}, lab.HostA)[0]),
		pluggedPods("veth/pod-ip", "veth", false),
		pluggedPods("bridge/pod-ip", "bridge", false),
		toHost,
		toContainer("host-to-container", lab.HostA),
		toContainer("container-to-container", lab.ContainerB),
		publishedLocally("published-port/localhost", false),
		published("published-port/host-ip", lab.HostA),
		publishedByUs("published-port/ebpf/localhost", netip.AddrFrom4([4]byte{127, 0, 0, 1})),
		publishedByUs("published-port/ebpf/host-ip", lab.Gateways[0].Addr()),
		pluggedPods("tun/pod-ip", "tun", false),
		pluggedPods("tun-offload/pod-ip", "tun", true),
	} {
		s.paths = append(s.paths, p)
		s.compare(p.id, "loopback")
	}
	s.compare("published-port/localhost", "published-port/host-ip")
	s.compare("published-port/ebpf/localhost", "published-port/ebpf/host-ip")
	s.compare("tun-offload/pod-ip", "tun/pod-ip")
	s.compare("host-to-container", "container-to-host")
	return s
}

// onHost is from a host to itself.
func onHost(id string, addr netip.Addr) path {
	p := across(id, lab.Options{Topology: twoHosts, Link: "host"}, ends{lab.HostA, lab.HostA})
	p.listen = netip.AddrPortFrom(addr, lab.ServicePort)
	p.connect = p.listen
	p.route = &route{hops: []hop{over(lab.HostA, "lo")}, avoids: []device{{lab.HostA, lab.Uplink}}}
	return p
}

// pluggedPods is from one pod of a host to the other.
func pluggedPods(id, link string, offload bool) path {
	p := path{link: link, lab: podLinksLab(link, lab.DatapathKernel, lab.ViaNone)}.toPod(id)
	p.route = &route{hops: []hop{
		out(lab.PodB, lab.IfName), in(lab.Host, lab.HostIfName(lab.PodB)),
		out(lab.Host, lab.HostIfName(lab.PodA)), in(lab.PodA, lab.IfName),
	}}
	if offload {
		p.variant, p.lab.Offload = "offload", true
	}
	if link == "bridge" {
		p.route.avoids = []device{{lab.Host, podlink.DefaultBridge}}
	}
	return p
}

// publishedByUs is from a host to an address of its own, where our services have a
// port lead to a pod: at the socket, so that the packets go to the pod's address.
func publishedByUs(id string, at netip.Addr) path {
	p := path{link: "veth", lab: podLinksLab("veth", lab.DatapathKernel, lab.ViaEBPFSocket)}.toPod(id)
	p.client, p.target, p.via = lab.Host, result.TargetPublishedPort, result.ViaEBPFSocket
	p.connect = netip.AddrPortFrom(at, lab.PublishedPort)
	p.route = &route{
		hops:   []hop{out(lab.Host, lab.HostIfName(lab.PodA)), in(lab.PodA, lab.IfName)},
		avoids: []device{{lab.Host, "lo"}},
	}
	return p
}
