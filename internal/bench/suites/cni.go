// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"maps"
	"net/netip"
	"strings"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// concurrentCalls is the number of calls that the concurrent workloads make at once.
const concurrentCalls = 100

// cni compares the time in which CNI plugins attach a pod and detach it, called as a
// container runtime calls them.
func cni() Suite {
	s := Suite{Name: "cni", Doc: "how fast CNI plugins attach and detach a pod, one at a time and 100 at once"}
	s.CountedQuestion = "How fast does a CNI plugin attach and detach a pod? (Timed runs tell.)"
	s.Report = result.Suite{
		Question:  "How fast does a CNI plugin attach and detach a pod?",
		Answer:    []string{result.AnswerFastest, result.AnswerReference, result.AnswerStatements},
		Reference: "bridge",
	}
	for _, flows := range []int{1, concurrentCalls} {
		s.Workloads = append(s.Workloads, Workload{Name: result.WorkloadCNIAdd, Flows: flows}, Workload{Name: result.WorkloadCNIDel, Flows: flows})
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
	s.addBaseline(add("bridge", "bridge", cnibench.Reference("bridge", map[string]any{"bridge": "cni0", "isGateway": true})))
	macvlan := cnibench.Reference("macvlan", map[string]any{"master": lab.Uplink, "mode": "bridge"})
	macvlan.Gateway = lab.Outside // the host has no device on the network
	s.Paths = append(s.Paths, add("ptp", "veth", cnibench.Reference("ptp", nil)), add("macvlan", "macvlan", macvlan))
	for _, link := range mustangLinks() {
		for _, services := range []struct{ suffix, setting, note string }{
			{"", cnibench.ServicesOff, ""},
			{"+socket", cnibench.ServicesSocket, "the pod also reaches services through its sockets, as by default"},
			{"+ebpf", cnibench.ServicesBoth, "the pod also reaches services: eBPF programs on its link and at its sockets"},
		} {
			plugin := cnibench.Mustang(services.setting, link.with(services.setting))
			if mode, err := podlink.Lookup(link.name); err == nil && !mode.Traits().HostSide {
				plugin.Endpoints = plugin.HasServices()
			}
			p := add("mustang-"+link.name+services.suffix, link.name, plugin)
			p.Note = services.note
			s.Paths = append(s.Paths, p)
		}
		plugin := cnibench.Mustang(cnibench.ServicesOff, link.with("agent"))
		plugin.Settings["services"], plugin.Agent = cnibench.ServicesOff, true
		p := add("mustang-"+link.name+"+agent", link.name, plugin)
		p.Variant, p.Note = "by the agent", "the plugin hands its work to a running agent"
		s.Paths = append(s.Paths, p)
	}
	for _, p := range s.Paths[2:] {
		s.compare(p.ID, "bridge")
	}
	s.state("mustang-veth against ptp", "mustang-veth", "ptp")
	s.state("mustang-macvlan against macvlan", "mustang-macvlan", "macvlan")
	for _, link := range mustangLinks() {
		name := "mustang-" + link.name
		s.state("With services at the socket, "+name, name+"+socket", name)
		s.state("With services per packet too, "+name, name+"+ebpf", name)
		s.state("By the agent, "+name, name+"+agent", name)
	}
	return s
}

type mustangLink struct {
	name     string
	settings map[string]any
	bridge   bool // each configuration has a bridge of its own
}

func mustangLinks() []mustangLink {
	return []mustangLink{
		{name: "veth"},
		{name: "bridge", bridge: true},
		{name: "macvlan", settings: map[string]any{"parent": lab.Uplink}},
	}
}

// with returns the settings of a configuration with a services setting.
func (l mustangLink) with(services string) map[string]any {
	settings := map[string]any{"link": l.name}
	maps.Copy(settings, l.settings)
	if l.bridge {
		settings["bridge"] = "mst-" + services
	}
	return settings
}
