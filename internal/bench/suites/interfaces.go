// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"slices"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

func interfaces() Suite {
	s := newSuite("How fast is each virtual network interface of Linux?", tcpStreams(1))
	s.Report.Answer, s.Report.Reference = []string{result.AnswerFastest, result.AnswerStatements}, "loopback"
	s.Report.Statements = []result.Statement{statement("The host's own address against 127.0.0.1", "host-ip", "loopback")}
	loopback := withinHost("loopback", localhost)
	loopback.Target = result.TargetLoopback
	s.addBaseline(loopback)
	toHost := dockerPath("container-to-host", lab.ContainerB, lab.HostA,
		append(slices.Clone(outOfContainer), evidence.Receives(lab.HostA, dockerBridge))...)
	toHost.Target = result.TargetHostIP
	offload := throughHost("tun-offload/pod-ip", "tun")
	offload.Variant, offload.Lab.Offload = "offload", true
	for _, p := range []Path{
		withinHost("host-ip", lab.Addresses(lab.Options{Topology: lab.TopologyTwoHosts, Link: lab.LinkHost}, lab.HostA)[0]),
		throughHost("veth/pod-ip", "veth"),
		throughHost("bridge/pod-ip", "bridge"),
		toHost,
		toContainer("host-to-container", lab.HostA),
		toContainer("container-to-container", lab.ContainerB),
		toPortLocally("published-port/localhost", false),
		toPort("published-port/host-ip", lab.HostA),
		toMustangPort("published-port/ebpf/localhost", localhost),
		toMustangPort("published-port/ebpf/host-ip", lab.Gateways[0].Addr()),
		throughHost("tun/pod-ip", "tun"),
		offload,
	} {
		s.add(p, loopback.ID)
		if p.ID == "tun/pod-ip" { // with the noise of a program in user space
			s.repeat(p)
		}
	}
	s.state("A published port at 127.0.0.1 against the host's address",
		"published-port/localhost", "published-port/host-ip")
	s.state("The same with Mustang's services", "published-port/ebpf/localhost", "published-port/ebpf/host-ip")
	s.state("Host to container against container to host", "host-to-container", "container-to-host")
	s.state("TUN with offloads against TUN without", "tun-offload/pod-ip", "tun/pod-ip")
	return s
}

func withinHost(id string, addr netip.Addr) Path {
	p := hostsPath(id, lab.HostA, lab.HostA, lab.Options{Link: lab.LinkHost})
	p.Route = &evidence.Route{
		Steps:  []evidence.Step{evidence.Loops(lab.HostA, "lo")},
		Avoids: []evidence.Device{{Place: lab.HostA, Name: lab.Uplink}},
	}
	return p.connectTo(addr)
}

func throughHost(id, link string) Path {
	p := podPath(id, link)
	p.Route = &evidence.Route{Steps: []evidence.Step{
		evidence.Sends(lab.PodB, lab.IfName), evidence.Receives(lab.Host, lab.HostIfName(lab.PodB)),
		evidence.Sends(lab.Host, lab.HostIfName(lab.PodA)), evidence.Receives(lab.PodA, lab.IfName),
	}}
	if evidence.Traits(link).Bridge {
		p.Route.Avoids = []evidence.Device{{Place: lab.Host, Name: podlink.DefaultBridge}}
	}
	return p
}

// toMustangPort returns the path from a host to one of its addresses where a Mustang service publishes a port of a
// pod. Translation at the socket sends the packets to the pod's address.
func toMustangPort(id string, addr netip.Addr) Path {
	p := podPath(id, "veth").publishedAt(addr)
	p.Client, p.Lab.Via, p.Via = lab.Host, lab.ViaEBPFSocket, result.ViaEBPFSocket
	p.Route = &evidence.Route{
		Steps:  []evidence.Step{evidence.Sends(lab.Host, lab.HostIfName(lab.PodA)), evidence.Receives(lab.PodA, lab.IfName)},
		Avoids: []evidence.Device{{Place: lab.Host, Name: "lo"}},
	}
	return p
}
