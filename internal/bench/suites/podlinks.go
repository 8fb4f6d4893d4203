// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

func podLinks() Suite {
	s := newSuite("Which way of connecting the pods of one host is the fastest, and what does a cluster IP cost in each?",
		usualTCP()...)
	s.QuickPaths = []string{"veth/pod-ip", "veth/cluster-ip/nftables", "veth+ebpf/pod-ip", "veth+ebpf/cluster-ip"}
	s.QuickWorkloads, s.Report.Layout = []string{load.TCPStream, load.TCPRR}, result.LayoutMatrix
	s.addHostPaths()
	for _, link := range kernelLinks {
		s.addKernelLink(link)
	}
	for _, link := range []string{
		"veth", "macvlan", "ipvlan-l2", "netkit", "ipvlan-l3", "ipvlan-l3s", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		s.addEBPFLink(link)
	}
	for _, id := range []string{"veth+ebpf", "veth", "bridge-call-off", "macvlan", "macvlan+ebpf"} {
		s.addBigTCP(id)
	}
	sockmap := podPath("veth+sockmap/pod-ip", "veth")
	sockmap.Variant, sockmap.Label = "sockmap", "sockmap (no policy)"
	sockmap.Lab.Sockmap, sockmap.Extra = true, true
	sockmap.Note = "for comparison only: data passes no guard, policy or counter, and many kernels have faults in sockmap"
	s.add(sockmap, "veth/pod-ip", "loopback")
	for _, p := range [][2]string{ // that the answer does not need
		{"veth/pod-ip", "loopback"}, {"veth+ebpf/pod-ip", "loopback"}, {"macvlan/pod-ip", "loopback"},
		{"macvlan+ebpf/pod-ip", "loopback"},
		{"bridge-call-off/pod-ip", "veth/pod-ip"}, {"macvlan/pod-ip", "veth/pod-ip"},
		{"bridge-call-on/pod-ip", "bridge-call-off/pod-ip"},
		{"bridge-call-on/cluster-ip/ebpf-socket", "bridge-call-off/pod-ip"},
		{"veth+ebpf/cluster-ip", "veth/cluster-ip/iptables"}, {"veth+ebpf/cluster-ip", "veth/cluster-ip/nftables"},
	} {
		s.compare(p[0], p[1])
	}
	return s
}

// kernelLink is a link mode with the kernel's datapath. The IDs of its rows begin with its own.
type kernelLink struct {
	id, link, variant      string
	label                  string // its display name; "" for link and variant
	netfilterCall, offload bool
	repeated               bool     // the pod IP is measured twice
	plain                  string   // the ID of the same link without offload
	asked                  bool     // the pod IP is one of the usual rows
	proxies                []string // the service proxies whose rows are usual
}

var kernelLinks = []kernelLink{
	{id: "veth", link: "veth", repeated: true, asked: true, proxies: []string{lab.ViaIPTables, lab.ViaNFTables}},
	{id: "bridge-call-off", link: "bridge", variant: "call-off", label: "bridge", asked: true},
	{id: "macvlan", link: "macvlan", asked: true, proxies: []string{lab.ViaIPTables}},
	{id: "ipvlan-l2", link: "ipvlan-l2", asked: true},
	{id: "netkit", link: "netkit", asked: true},
	{id: "bridge-call-on", link: "bridge", variant: "call-on", netfilterCall: true},
	{id: "ipvlan-l3", link: "ipvlan-l3"},
	{id: "ipvlan-l3s", link: "ipvlan-l3s"},
	{id: "netkit-l2", link: "netkit-l2"},
	{id: "ovs-veth", link: "ovs-veth", repeated: true},
	{id: "ovs-internal", link: "ovs-internal"},
	{id: "tun", link: "tun", repeated: true},
	{id: "tun-offload", link: "tun", variant: "offload", offload: true, plain: "tun"},
}

func (s *Suite) addHostPaths() {
	loopback := podPath("loopback", "veth").connectTo(localhost)
	loopback.Link, loopback.Target = result.LinkHost, result.TargetLoopback
	loopback.Label, loopback.Baseline = "loopback", true
	loopback.Client, loopback.Server = lab.Host, lab.Host
	fromHost := podPath("host-to-pod", "veth")
	fromHost.Client = lab.Host
	fromHost.Label, fromHost.Baseline, fromHost.Extra = "host to pod", true, true
	fromHost.Note = "from the host to a pod on veth"
	s.Paths = append(s.Paths, loopback, fromHost)
}

// addKernelLink adds the paths of a link mode with the kernel's datapath: the pod IP, and for each service proxy the
// pod IP and the cluster IP in the proxy's network.
func (s *Suite) addKernelLink(l kernelLink) {
	podIP := podPath(l.id+"/pod-ip", l.link)
	podIP.Variant, podIP.Label, podIP.Extra = l.variant, l.label, !l.asked
	podIP.Lab.NetfilterCall, podIP.Lab.Offload = l.netfilterCall, l.offload
	if l.netfilterCall {
		podIP.Lab.Via = lab.ViaIPTables // without rules the calls would measure nothing
		podIP.Note = "kube-proxy's iptables rules on the host see the bridged packets"
	}
	s.Paths = append(s.Paths, podIP)
	if l.repeated {
		s.repeat(podIP)
	}
	if l.plain != "" {
		s.Pairs = append(s.Pairs, Pair{l.plain + " with offload / without: pod IP", podIP.ID, l.plain + "/pod-ip", false, ""})
	}
	for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaEBPFSocket} {
		with := podIP
		if podIP.Lab.Via != via {
			with.ID, with.Lab.Via, with.Note = podIP.ID+"/"+via, via, ""
			with.Extra = !slices.Contains(l.proxies, via)
			s.Paths = append(s.Paths, with)
			if podIP.Lab.Via == lab.ViaNone {
				s.ask(result.AsksProxy, with.ID, podIP.ID)
			}
		}
		p := with.toService(via)
		p.ID, p.Note = l.id+"/cluster-ip/"+via, ""
		if p.Masqueraded() {
			p.Note = "masquerade-all, as replies would bypass the host otherwise"
		}
		s.Paths = append(s.Paths, p)
		s.ask(result.AsksService, p.ID, with.ID)
		if !l.netfilterCall { // whose pod IP has rules too
			s.ask(result.AsksTotal, p.ID, podIP.ID)
		}
	}
}

// addBigTCP adds the pod IP of a connection again, with BIG TCP. All other rows are without.
func (s *Suite) addBigTCP(plain string) {
	big, _ := s.path(plain + "/pod-ip")
	big.ID, big.Variant, big.Lab.BigTCP = plain+"+big-tcp/pod-ip", strings.TrimSpace(big.Variant+" big-tcp"), true
	big.Label = cmp.Or(big.Label, strings.Replace(plain, "+ebpf", "+eBPF", 1)) + " big-tcp"
	big.Workload, big.Extra = load.TCPStream, plain != "veth+ebpf"
	s.Paths = append(s.Paths, big)
	s.ask(result.AsksBigTCP, big.ID, plain+"/pod-ip")
}

func (s *Suite) addEBPFLink(link string) {
	plain, _ := s.path(link + "/pod-ip")
	podIP := ebpfPath(link+"+ebpf/pod-ip", link)
	podIP.Extra = plain.Extra
	service := podIP.toService(result.ViaEBPFTC)
	service.ID = link + "+ebpf/cluster-ip"
	s.Paths = append(s.Paths, podIP, service)
	s.ask(result.AsksProxy, podIP.ID, link+"/pod-ip")
	s.ask(result.AsksService, service.ID, podIP.ID)
	s.ask(result.AsksTotal, service.ID, link+"/pod-ip")
}

func ipv6() Suite {
	s := newSuite("What does IPv6 cost between the pods of one host, and a cluster IP of it?", usualTCP()...)
	s.Report.Layout, s.Report.Answer = result.LayoutMatrix, []string{result.AnswerStatements, result.AnswerFastest}
	against := result.Statement{Caption: "IPv6 against IPv4", Subject: "by IPv6", Object: "by IPv4"}
	links := []string{"veth", "bridge-call-off", "macvlan", "ipvlan-l2", "netkit"}
	targets := []string{"pod-ip", "pod-ip/iptables", "cluster-ip/iptables", "cluster-ip"}
	four := podLinks()
	for _, p := range four.Paths {
		link, rest, _ := strings.Cut(p.ID, "/")
		if !slices.Contains(links, strings.TrimSuffix(link, "+ebpf")) || !slices.Contains(targets, rest) {
			continue
		}
		six := p
		six.ID = byIPv6(p.ID)
		six.Listen = netip.AddrPortFrom(lab.PodAIPs[1], p.Listen.Port())
		six.Connect = six.Listen
		if p.Target == result.TargetClusterIP {
			six.Connect = lab.Services()[1].Frontend
		}
		if rest == "pod-ip" {
			s.add(p)
			s.compare(six.ID, p.ID)
			against.Pairs = append(against.Pairs, pairOf(six.ID, p.ID, link))
		}
		s.add(six)
		if p.ID == "veth/pod-ip" {
			s.repeat(six)
		}
	}
	for _, p := range four.Pairs { // the questions on the same paths by IPv4
		_, numerator := s.path(byIPv6(p.Numerator))
		_, denominator := s.path(byIPv6(p.Denominator))
		if p.Asks != "" && numerator && denominator {
			s.ask(p.Asks, byIPv6(p.Numerator), byIPv6(p.Denominator))
		}
	}
	s.Report.Statements = []result.Statement{against}
	return s
}

func byIPv6(id string) string {
	link, rest, _ := strings.Cut(id, "/")
	return link + "/ipv6/" + rest
}

func twoCPUs() Suite {
	s := newSuite("What changes if client and server run on two CPUs?", usualTCP()...)
	s.Report.Answer, s.Report.Variants = []string{result.AnswerStatements}, true
	against := result.Statement{Caption: "Two CPUs against one", Subject: "on two CPUs", Object: "on one"}
	ids := []string{"loopback", "veth/pod-ip", "bridge-call-off/pod-ip", "macvlan/pod-ip", "veth+ebpf/pod-ip",
		"veth+ebpf/cluster-ip", "veth/cluster-ip/" + lab.ViaNFTables}
	for _, p := range podLinks().Paths {
		if !slices.Contains(ids, p.ID) {
			continue
		}
		p.Label, p.Baseline, p.Note = p.ID, false, ""
		two := p
		two.ID, two.Label, two.TwoCPUs, two.Variant = p.ID+"@2cpus", p.ID+"@2cpus", true, "two CPUs"
		s.add(p)
		s.add(two, p.ID)
		against.Pairs = append(against.Pairs, pairOf(two.ID, p.ID, p.ID))
		if p.ID == "veth/pod-ip" {
			s.repeat(p)
			s.repeat(two)
			continue
		}
		s.compare(two.ID, "veth/pod-ip@2cpus")
	}
	s.Report.Statements = []result.Statement{against}
	return s
}

func ebpfPath(id, link string) Path {
	p := podPath(id, link)
	p.Lab.Datapath, p.Lab.Via = lab.DatapathEBPF, lab.ViaEBPFTC
	return p
}

// podPath returns the path from pod-b to the address of pod-a on the same host, with the kernel's datapath. Its port
// belongs to no service: at the port of a service, the replies of a pod IP pay part of the service's cost.
func podPath(id, link string) Path {
	p := Path{ID: id, Path: evidence.Path{
		Link: link, Target: result.TargetPodIP, Via: result.ViaNone, Client: lab.PodB, Server: lab.PodA,
		Lab: lab.Options{Topology: lab.TopologyPodLinks, Link: link, Datapath: lab.DatapathKernel, Via: lab.ViaNone},
	}}
	return p.connectTo(lab.PodAIPs[0])
}

func (p Path) toService(via string) Path {
	p.Target, p.Via = result.TargetClusterIP, via
	p.Listen = netip.AddrPortFrom(p.Listen.Addr(), lab.ServicePort)
	p.Connect = lab.Services()[0].Frontend
	return p
}
