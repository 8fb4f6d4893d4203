// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"strings"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/result"
)

const concurrentCalls = 100

func cni() Suite {
	s := newSuite("How fast does a CNI plugin attach and detach a pod?")
	s.Report.Answer = []string{result.AnswerFastest, result.AnswerReference, result.AnswerStatements}
	s.Report.Reference = "bridge"
	for _, flows := range []int{1, concurrentCalls} {
		s.Workloads = append(s.Workloads, Workload{Name: result.WorkloadCNIAdd, Flows: flows},
			Workload{Name: result.WorkloadCNIDel, Flows: flows})
	}
	subnet := byte(80)
	add := func(id, link string, p cnibench.Plugin) Path {
		p.Network = strings.ReplaceAll("bench-"+id, "+", "-") // the CNI spec allows no +
		p.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, subnet, 0, 0}), 16)
		subnet++
		path := Path{ID: id, Plugin: &p, Path: evidence.Path{
			Link: link, Target: result.TargetNone, Via: result.ViaNone, Lab: cnibench.LabOptions(),
		}}
		if p.HasServices() {
			path.Variant = "services " + p.Services
		}
		return path
	}
	s.addBaseline(add("bridge", "bridge", cnibench.Reference("bridge", map[string]any{"bridge": "cni0",
		"isGateway": true})))
	macvlan := cnibench.Reference("macvlan", map[string]any{"master": lab.Uplink, "mode": "bridge"})
	macvlan.Gateway = lab.Outside // the host lacks a device on the network
	s.add(add("ptp", "veth", cnibench.Reference("ptp", nil)), "bridge")
	s.add(add("macvlan", "macvlan", macvlan), "bridge")
	links := []string{"veth", "bridge", "macvlan"}
	for _, link := range links {
		for _, way := range []struct{ suffix, services, note string }{
			{"", cnibench.ServicesOff, ""},
			{"+socket", cnibench.ServicesSocket, "the pod also reaches services through its sockets, as by default"},
			{"+ebpf", cnibench.ServicesBoth, "the pod also reaches services: eBPF programs on its link and at its sockets"},
			{"+agent", cnibench.ServicesOff, "the plugin hands its work to a running agent"},
		} {
			plugin := cnibench.Mustang(way.services, map[string]any{"link": link})
			plugin.Agent = way.suffix == "+agent"
			switch { // each configuration has a bridge of its own
			case link == "macvlan":
				plugin.Settings["parent"] = lab.Uplink
			case link == "bridge" && plugin.Agent:
				plugin.Settings["bridge"] = "mst-agent"
			case link == "bridge":
				plugin.Settings["bridge"] = "mst-" + way.services
			}
			if !evidence.Traits(link).HostSide {
				plugin.Endpoints = plugin.HasServices()
			}
			p := add("mustang-"+link+way.suffix, link, plugin)
			if p.Note = way.note; plugin.Agent {
				p.Variant = "by the agent"
			}
			s.add(p, "bridge")
		}
	}
	s.state("mustang-veth against ptp", "mustang-veth", "ptp")
	s.state("mustang-macvlan against macvlan", "mustang-macvlan", "macvlan")
	for _, link := range links {
		name := "mustang-" + link
		s.state("With services at the socket, "+name, name+"+socket", name)
		s.state("With services per packet too, "+name, name+"+ebpf", name)
		s.state("By the agent, "+name, name+"+agent", name)
	}
	return s
}
