// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"slices"
	"strings"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// podLinks compares the ways to connect two pods of one host, by pod IP and by
// cluster IP.
func podLinks() Suite {
	s := Suite{
		Name:      Default,
		Doc:       "two pods of one host: each link mode by pod IP and by cluster IP",
		Workloads: []Workload{tcpStreams(1), tcpRR(), tcpCRR()},
		Report: result.Suite{
			Question: "Which way of connecting the pods of one host is the fastest, and what does a cluster IP cost in each?",
			Layout:   result.LayoutMatrix, Noun: "way of connecting pods",
			Answer: []string{result.AnswerFastest, result.AnswerServiceCost},
		},
		CountedQuestion: "Which way of connecting the pods of one host takes the fewest instructions, and what does a cluster IP cost in each?",
	}
	s.addHostPaths()
	for _, link := range kernelLinks() {
		s.addKernelLink(link)
	}
	for _, plain := range []string{"veth", "bridge-call-off", "macvlan"} {
		s.addBigTCP(plain)
	}
	for _, link := range []string{
		"veth", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		s.addEBPFLink(link)
	}
	s.compareLinks()
	return s
}

// compareLinks adds the comparisons of different links, and of services that they reach in different ways, which people ask
// for most.
func (s *Suite) compareLinks() {
	for _, p := range [][2]string{
		{"veth/pod-ip", "loopback"}, {"veth+ebpf/pod-ip", "loopback"}, {"macvlan/pod-ip", "loopback"}, {"macvlan+ebpf/pod-ip", "loopback"},
		{"bridge-call-off/pod-ip", "veth/pod-ip"}, {"macvlan/pod-ip", "veth/pod-ip"},
		{"bridge-call-on/pod-ip", "bridge-call-off/pod-ip"}, {"bridge-call-on/cluster-ip/ebpf-socket", "bridge-call-off/pod-ip"},
		{"veth+ebpf/cluster-ip", "veth/cluster-ip/iptables"}, {"veth+ebpf/cluster-ip", "veth/cluster-ip/nftables"},
	} {
		s.compare(p[0], p[1])
	}
}

// kernelLink is a link mode with the kernel's datapath.
type kernelLink struct {
	id            string // its rows' IDs begin with it
	link, variant string
	netfilterCall bool
	offload       bool
	repeated      bool   // the pod IP is measured twice
	plain         string // the ID of the same link without offload
}

// kernelLinks returns the link modes with the kernel's datapath.
func kernelLinks() []kernelLink {
	return []kernelLink{
		{id: "veth", link: "veth", repeated: true},
		{id: "bridge-call-off", link: "bridge", variant: "call-off"},
		{id: "bridge-call-on", link: "bridge", variant: "call-on", netfilterCall: true},
		{id: "macvlan", link: "macvlan"},
		{id: "ipvlan-l2", link: "ipvlan-l2"},
		{id: "ipvlan-l3", link: "ipvlan-l3"},
		{id: "ipvlan-l3s", link: "ipvlan-l3s"},
		{id: "netkit", link: "netkit"},
		{id: "netkit-l2", link: "netkit-l2"},
		{id: "ovs-veth", link: "ovs-veth", repeated: true},
		{id: "ovs-internal", link: "ovs-internal"},
		{id: "tun", link: "tun", repeated: true},
		{id: "tun-offload", link: "tun", variant: "offload", offload: true, plain: "tun"},
	}
}

// addHostPaths adds the paths that connect no two pods, as a reference.
func (s *Suite) addHostPaths() {
	loopback := podPath("loopback", "veth")
	loopback.Link, loopback.Target = result.LinkHost, result.TargetLoopback
	loopback.Label, loopback.Baseline = "loopback", true
	loopback.Client, loopback.Server = lab.Host, lab.Host
	loopback = loopback.connectTo(localhost)
	fromHost := podPath("host-to-pod", "veth")
	fromHost.Client = lab.Host
	fromHost.Label, fromHost.Baseline = "host to pod", true
	fromHost.Note = "from the host to a pod on veth"
	s.Paths = append(s.Paths, loopback, fromHost)
}

// addKernelLink adds the paths of a link mode with the kernel's datapath.
func (s *Suite) addKernelLink(l kernelLink) {
	podIP := podPath(l.id+"/pod-ip", l.link)
	podIP.Variant, podIP.Lab.NetfilterCall, podIP.Lab.Offload = l.variant, l.netfilterCall, l.offload
	service := podIP
	if l.netfilterCall {
		podIP.Lab.Via = lab.ViaIPTables // without rules the calls would measure nothing
		podIP.Note = "kube-proxy's iptables rules on the host see the bridged packets"
	}
	s.Paths = append(s.Paths, podIP)
	if l.repeated {
		s.repeat(podIP)
	}
	if l.plain != "" {
		s.Pairs = append(s.Pairs, Pair{Name: l.plain + " with offload / without: pod IP", Numerator: podIP.ID, Denominator: l.plain + "/pod-ip"})
	}
	for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaEBPFSocket} {
		p := service
		p.ID, p.Lab.Via = l.id+"/cluster-ip/"+via, via
		p = p.toService(via)
		if p.Masqueraded() {
			p.Note = "masquerade-all, as replies would bypass the host otherwise"
		}
		if l.netfilterCall && via != podIP.Lab.Via {
			// A ratio would mix the cost of the service with that of other rules.
			p.Note = "not compared with the pod IP, which was measured with iptables rules"
			s.Paths = append(s.Paths, p)
			continue
		}
		s.Paths = append(s.Paths, p)
		s.Pairs = append(s.Pairs, Pair{Name: l.id + ": cluster IP by " + via + " / pod IP", Numerator: p.ID, Denominator: podIP.ID})
	}
}

// addBigTCP adds the pod IP of a link mode with the kernel's datapath again, with BIG TCP, which pods have by default. The
// other rows of the kernel's datapath are without.
func (s *Suite) addBigTCP(plain string) {
	i := slices.IndexFunc(s.Paths, func(p Path) bool { return p.ID == plain+"/pod-ip" })
	big := s.Paths[i]
	big.ID, big.Variant, big.Lab.BigTCP = plain+"+big-tcp/pod-ip", strings.TrimSpace(big.Variant+" big-tcp"), true
	s.Paths = append(s.Paths, big)
	s.Pairs = append(s.Pairs, Pair{Name: plain + " with BIG TCP / without: pod IP", Numerator: big.ID, Denominator: plain + "/pod-ip"})
}

// addEBPFLink adds the paths of a link mode with the eBPF datapath.
func (s *Suite) addEBPFLink(link string) {
	name := link + "+ebpf"
	podIP := podPath(name+"/pod-ip", link)
	podIP.Lab.Datapath, podIP.Lab.Via = lab.DatapathEBPF, lab.ViaEBPFTC
	if mode, err := podlink.Lookup(link); err == nil { // the kernel has no datapath of Open vSwitch everywhere
		podIP.Lab.BigTCP = mode.Traits().BigTCP && mode.Traits().Needs != podlink.NeedsOpenVSwitch
	}
	service := podIP.toService(result.ViaEBPFTC)
	service.ID = name + "/cluster-ip"
	s.Paths = append(s.Paths, podIP, service)
	s.Pairs = append(s.Pairs,
		Pair{Name: name + ": cluster IP / pod IP", Numerator: service.ID, Denominator: podIP.ID},
		Pair{Name: name + " / " + link + ": pod IP", Numerator: podIP.ID, Denominator: link + "/pod-ip"})
	if link != "veth" {
		return
	}
	without := podIP
	without.ID, without.Variant, without.Lab.BigTCP = name+"-no-big-tcp/pod-ip", "no-big-tcp", false
	without.Label = link + "+eBPF no-big-tcp"
	s.Paths = append(s.Paths, without)
	s.Pairs = append(s.Pairs,
		Pair{Name: name + " with BIG TCP / without: pod IP", Numerator: podIP.ID, Denominator: without.ID},
		Pair{Name: name + " without BIG TCP / " + link + ": pod IP", Numerator: without.ID, Denominator: link + "/pod-ip"})
}

// podPath returns the path from pod-b to the address of pod-a on the same host, with
// the kernel's datapath.
func podPath(id, link string) Path {
	p := Path{ID: id, Path: evidence.Path{
		Link: link, Target: result.TargetPodIP, Via: result.ViaNone, Client: lab.PodB, Server: lab.PodA,
		Lab: lab.Options{Topology: lab.TopologyPodLinks, Link: link, Datapath: lab.DatapathKernel, Via: lab.ViaNone},
	}}
	return p.connectTo(lab.PodAIPs[0])
}

// toService returns the path to the address of a service whose backend is its server.
func (p Path) toService(via string) Path {
	p.Target, p.Via = result.TargetClusterIP, via
	p.Connect = lab.Services()[0].Frontend
	return p
}
