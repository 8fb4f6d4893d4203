// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"cmp"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/result"
)

func latency() Suite {
	s := newSuite("What does a container's network interface add to the latency between two hosts?", tcpRR())
	s.Report.Answer, s.Report.Reference = []string{result.AnswerReference}, "host"
	s.Report.TransactionTime, s.Report.PacketPath = true, true
	s.addBaseline(hostsPath("host", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHost}))
	for _, id := range []string{"veth-bridge-nat", "veth", "veth+ebpf", "macvlan", "ipvlan-l2"} {
		o := lab.Options{Topology: lab.TopologyPodToHost, Link: id}
		switch id {
		case "veth-bridge-nat":
			o.Link, o.NAT = "bridge", true
		case "veth+ebpf":
			o.Link, o.Datapath, o.Via = "veth", lab.DatapathEBPF, lab.ViaEBPFTC
		}
		p := hostsPath(id, lab.PodB, lab.HostA, o)
		if o.NAT {
			p.Variant, p.Note = "nat", "a bridge behind the host's address, as with Docker"
		}
		s.add(p, "host")
	}
	return s
}

func overlay() Suite {
	s := newSuite("What does VXLAN between two hosts cost, and what do eBPF programs save?", usualTCP()...)
	s.Report.Answer, s.Report.Reference = []string{result.AnswerStatements}, "host"
	s.addBaseline(hostsPath("host", lab.HostB, lab.HostA, lab.Options{Link: lab.LinkHost}))
	for _, datapath := range []string{lab.DatapathKernel, lab.DatapathEBPF} {
		for _, kind := range []string{lab.OverlayNone, lab.OverlayVXLAN} {
			id := "veth"
			if kind == lab.OverlayVXLAN {
				id = "vxlan/" + id
			}
			if datapath == lab.DatapathEBPF {
				id += "+ebpf"
			}
			s.add(hostsPath(id, lab.PodB, lab.PodA, lab.Options{Link: "veth", Overlay: kind, Datapath: datapath}), "host")
		}
	}
	s.Report.Statements = []result.Statement{
		{Caption: "eBPF against the kernel", Subject: "by eBPF", Object: "by the kernel", Pairs: []result.Pair{
			pairOf("vxlan/veth+ebpf", "vxlan/veth", "VXLAN"), pairOf("veth+ebpf", "veth", "no overlay")}},
		{Caption: "VXLAN against no overlay", Subject: "by VXLAN", Object: "without an overlay", Pairs: []result.Pair{
			pairOf("vxlan/veth+ebpf", "veth+ebpf", "by eBPF"), pairOf("vxlan/veth", "veth", "by the kernel")}},
	}
	for _, statement := range s.Report.Statements {
		for _, p := range statement.Pairs {
			s.compare(p.Numerator, p.Denominator)
		}
	}
	return s
}

// hostsPath returns the path between two hosts, or between pods on them, in a lab whose options have defaults.
func hostsPath(id, client, server string, o lab.Options) Path {
	o.Topology, o.Datapath = cmp.Or(o.Topology, lab.TopologyTwoHosts), cmp.Or(o.Datapath, lab.DatapathKernel)
	if o.Datapath == lab.DatapathEBPF {
		o.Via = cmp.Or(o.Via, lab.ViaEBPFTC)
	}
	o.Via = cmp.Or(o.Via, lab.ViaNone)
	p := Path{ID: id, Baseline: evidence.Traits(o.Link).ResultLink == "", Path: evidence.Path{
		Link: resultLink(o.Link), Lab: o, Client: client, Server: server, Target: result.TargetPodIP, Via: result.ViaNone,
	}}
	if server == lab.HostA {
		p.Target = result.TargetHostIP
	}
	if o.Overlay != "" && o.Overlay != lab.OverlayNone {
		p.Overlay = result.OverlayVXLAN
	}
	p.Route = p.routeAcross()
	return p.connectTo(lab.Addresses(o, server)[0])
}

func resultLink(link string) string { return cmp.Or(evidence.Traits(link).ResultLink, result.LinkHost) }

// HostToHost reports whether the path connects two hosts without pods. To another machine it needs no lab.
func (p Path) HostToHost() bool { return p.Lab.Link == lab.LinkHost && p.TwoHosts() }

// ToPeer returns the path with another machine as its server, where the path can have one. Pods reach it through a
// device on the uplink; without an uplink only the machine itself does.
func (p Path) ToPeer(uplink lab.UplinkDevice) Path {
	switch {
	case uplink == lab.UplinkDevice{}:
	case p.HostToHost():
		p.Lab.Uplink = uplink // no lab is built, but packets cross the device
	case p.Lab.Topology == lab.TopologyPodToHost:
		p.Lab.Topology, p.Lab.Uplink, p.Lab.WireRate, p.Lab.WireDelay = lab.TopologyPodToNetwork, uplink, 0, 0
		p.Route = p.routeAcross()
	}
	return p
}

func (p Path) routeAcross() *evidence.Route {
	r := &evidence.Route{TwoHosts: true, Steps: stepsOut(p.Lab, p.Client, lab.HostB)}
	switch p.Lab.Topology {
	case lab.TopologyPodToNetwork:
		r.Steps = append(r.Steps, evidence.Sends(evidence.ThisMachine, p.Lab.Uplink.Name))
	case lab.TopologyPodToHost:
		r.Steps = append(r.Steps, evidence.Receives(lab.HostA, lab.Uplink))
	default:
		r.Steps = append(r.Steps, evidence.Reverse(stepsOut(p.Lab, p.Server, lab.HostA))...)
	}
	if p.Lab.NAT && p.Client == lab.PodB {
		r.SeenAs, r.TranslatedAt = lab.Addresses(p.Lab, lab.HostB)[0], lab.HostB
	}
	if p.Lab.Datapath == lab.DatapathEBPF {
		r.Programs = []string{"from_pod"}
		if bypassesStacks(p.Lab) {
			r.Programs = append(r.Programs, "to_remote")
			for host, pod := range map[string]string{lab.HostA: lab.PodA, lab.HostB: lab.PodB} {
				r.Avoids = append(r.Avoids, evidence.Device{Place: host, Name: lab.TunnelDevice})
				r.Unsent = append(r.Unsent, evidence.Device{Place: host, Name: lab.HostIfName(pod)})
			}
		}
	}
	return r
}

// bypassesStacks reports whether programs send packets of pods past the stacks of both hosts.
func bypassesStacks(o lab.Options) bool {
	return o.Topology == lab.TopologyTwoHosts && o.Datapath == lab.DatapathEBPF
}

func stepsOut(o lab.Options, place, host string) (steps []evidence.Step) {
	traits := evidence.Traits(o.Link)
	if place != host && !o.Guests {
		steps = append(steps, evidence.Sends(place, lab.IfName))
	}
	if bypassesStacks(o) { // programs at the host's end of the link, which counts one direction
		return append(steps, evidence.Sends(host, lab.Uplink))
	}
	if place != host && traits.HostSide {
		steps = append(steps, evidence.Receives(host, lab.HostIfName(place)))
	}
	if place != host && o.NAT && traits.Bridge { // the host routes
		steps = append(steps, evidence.Receives(host, traits.HostDevice))
	}
	if o.Topology == lab.TopologyPodToNetwork && traits.UplinkSibling {
		return steps
	}
	if place != host && traits.Routed && o.Overlay == lab.OverlayVXLAN {
		steps = append(steps, evidence.Sends(host, lab.TunnelDevice))
	}
	return append(steps, evidence.Sends(host, lab.Uplink))
}
