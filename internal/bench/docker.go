// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// docker compares the network modes of Docker with the way from one host to
// another, as article 004 does.
func docker() Suite {
	s := Suite{
		Name:      "docker",
		Doc:       "Docker's network modes against the way from host to host",
		workloads: []workload{tcpStreams(1), tcpRR()},
	}
	s.addBaseline(across("host-to-host", lab.Options{Topology: twoHosts, Link: "host"}, ends{lab.HostB, lab.HostA}))
	for _, p := range []path{
		hostMode("host-mode"),
		published("published-port/two-hosts", lab.HostB),
		published("published-port/same-host", lab.HostA),
		publishedLocally("published-port/localhost", false),
		publishedLocally("published-port/localhost/no-proxy", true),
		published("container-to-container/host-ip", lab.ContainerB),
		toContainer("container-to-container/ip", lab.ContainerB),
	} {
		s.paths = append(s.paths, p)
		s.compare(p.id, "host-to-host")
	}
	s.compare("published-port/two-hosts", "host-mode")
	s.compare("published-port/localhost", "published-port/same-host")
	s.compare("published-port/localhost", "published-port/localhost/no-proxy")
	s.compare("container-to-container/host-ip", "container-to-container/ip")
	return s
}

// A lab with Docker, and the bridge of its containers.
const (
	dockerTopology = "docker"
	dockerBridge   = "docker0"
)

// dockerGateway is the bridge's address.
var dockerGateway = netip.AddrFrom4([4]byte{172, 17, 0, 1})

func dockerLab(noProxy bool) lab.Options {
	return lab.Options{Topology: dockerTopology, Link: "bridge", Datapath: lab.DatapathKernel, Via: lab.ViaNone, NoProxy: noProxy}
}

// dockerPath is a path in a lab with Docker.
func dockerPath(id, client, server string) path {
	o := dockerLab(false)
	p := path{
		id: id, link: "bridge", lab: o, client: client, server: server,
		target: result.TargetPodIP, via: result.ViaNone, variant: "docker",
	}
	p.listen = netip.AddrPortFrom(lab.Addresses(o, server)[0], lab.ServicePort)
	p.connect = p.listen
	return p
}

// hostMode is from the other host to a container that shares its host's
// namespace.
func hostMode(id string) path {
	p := dockerPath(id, lab.HostB, lab.ContainerHost)
	p.link, p.target = "host", result.TargetHostIP
	p.route = &route{wire: true, hops: []hop{out(lab.HostB, lab.Uplink), in(lab.HostA, lab.Uplink)},
		avoids: []device{{lab.HostA, dockerBridge}}}
	return p
}

// intoContainer is the way from host-a into container-a.
func intoContainer() []hop {
	return []hop{out(lab.HostA, hostSideOf+lab.ContainerA), in(lab.ContainerA, lab.IfName)}
}

// outOfContainer is the way from container-b to the bridge.
func outOfContainer() []hop {
	return []hop{out(lab.ContainerB, lab.IfName), in(lab.HostA, hostSideOf+lab.ContainerB)}
}

// toContainer is to container-a's own address.
func toContainer(id, client string) path {
	p := dockerPath(id, client, lab.ContainerA)
	p.route = &route{}
	if client == lab.ContainerB {
		p.route.hops = append(outOfContainer(), intoContainer()...)
		return p
	}
	p.route.hops = append([]hop{out(lab.HostA, dockerBridge)}, intoContainer()...)
	return p
}

// published is to the host's own address and the port that container-a
// publishes there.
func published(id, client string) path {
	p := dockerPath(id, client, lab.ContainerA)
	p.target, p.via = result.TargetPublishedPort, result.ViaDocker
	p.connect = netip.AddrPortFrom(lab.Addresses(p.lab, lab.HostA)[0], lab.PublishedPort)
	p.route = &route{}
	bridge := out(lab.HostA, dockerBridge)
	switch client {
	case lab.HostB:
		p.route.wire, p.route.translatedAt = true, lab.HostA
		p.route.hops = []hop{out(lab.HostB, lab.Uplink), in(lab.HostA, lab.Uplink), bridge}
	case lab.HostA:
		p.route.translatedAt = lab.HostA
		p.route.hops = []hop{bridge}
	default: // in at the bridge, to Docker's proxy, and out at the bridge again
		p.note = "through Docker's user-land proxy: its rules for published ports leave out what comes from the bridge"
		p.route.seenAs = dockerGateway
		p.route.hops = append(outOfContainer(), over(lab.HostA, dockerBridge))
	}
	p.route.hops = append(p.route.hops, intoContainer()...)
	return p
}

// publishedLocally is to the published port by 127.0.0.1: through Docker's
// user-land proxy, or by rules alone.
func publishedLocally(id string, noProxy bool) path {
	p := published(id, lab.HostA)
	p.lab = dockerLab(noProxy)
	p.connect = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), lab.PublishedPort)
	p.route.seenAs = dockerGateway
	if noProxy {
		p.variant, p.note = "docker no-proxy", "without Docker's user-land proxy: by rules, and route_localnet"
		p.route.avoids = []device{{lab.HostA, "lo"}}
		return p
	}
	p.note = "through Docker's user-land proxy"
	p.route.translatedAt = ""
	p.route.hops = append([]hop{over(lab.HostA, "lo")}, p.route.hops...)
	return p
}
