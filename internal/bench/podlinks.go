// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// podLinks compares the ways to connect two pods of one host, by pod IP and by
// cluster IP.
func podLinks() Suite {
	s := Suite{
		Name: "pod-links",
		Doc:  "two pods of one host: each link mode by pod IP and by cluster IP",

		workloads: []workload{tcpStreams(1), tcpRR()},
	}
	s.paths = append(s.paths, baselines()...)
	for _, base := range kernelLinks() {
		s.addLink(base)
	}
	for _, link := range []string{
		"veth", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		s.addDatapath(link)
	}
	return s
}

// kernelLinks are the link modes with the kernel's own datapath. The id of each
// is the beginning of its rows'.
func kernelLinks() []path {
	var links []path
	add := func(id, link string, change func(*path)) {
		p := path{id: id, link: link, lab: podLinksLab(link, lab.DatapathKernel, lab.ViaNone)}
		if change != nil {
			change(&p)
		}
		links = append(links, p)
	}
	add("veth", "veth", nil)
	add("bridge-call-off", "bridge", func(p *path) { p.variant = "call-off" })
	add("bridge-call-on", "bridge", func(p *path) { p.variant, p.lab.NetfilterCall = "call-on", true })
	for _, link := range []string{
		"macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal", "tun",
	} {
		add(link, link, nil)
	}
	add("tun-offload", "tun", func(p *path) { p.variant, p.lab.Offload = "offload", true })
	return links
}

// baselines are what the links are held against.
func baselines() []path {
	plain := path{link: "veth", lab: podLinksLab("veth", lab.DatapathKernel, lab.ViaNone)}
	loopback := plain
	loopback.id, loopback.link, loopback.target, loopback.via = "loopback", "host", result.TargetLoopback, result.ViaNone
	loopback.client, loopback.server = lab.Host, lab.Host
	loopback.connect = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), lab.ServicePort)
	loopback.listen = loopback.connect
	fromHost := plain.toPod("host-to-pod")
	fromHost.client = lab.Host
	fromHost.note = "from the host to a pod on veth"
	return []path{loopback, fromHost}
}

// addLink adds the rows of a link mode with the kernel's datapath.
func (s *Suite) addLink(base path) {
	podIP := base.toPod(base.id + "/pod-ip")
	if base.lab.NetfilterCall {
		// Without rules there is nothing to call.
		podIP.lab.Via = lab.ViaIPTables
		podIP.note = "kube-proxy's iptables rules are in the host, and see the bridged packets"
	}
	s.paths = append(s.paths, podIP)
	if base.id == "veth" {
		again := podIP
		again.id, again.variant, again.note = base.id+"/pod-ip/again", "again", "the same as "+podIP.id+", measured again"
		s.paths = append(s.paths, again)
		s.pairs = append(s.pairs, pair{name: "A/A: " + podIP.id + " measured twice", numerator: again.id, denominator: podIP.id, aa: true})
	}
	if base.id == "tun-offload" {
		s.pairs = append(s.pairs, pair{name: "tun with offload / without: pod IP", numerator: podIP.id, denominator: "tun/pod-ip"})
	}
	for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaEBPFSocket} {
		service := base
		service.via, service.lab.Via = via, via
		service = service.toService(base.id + "/cluster-ip/" + via)
		if service.masqueraded() {
			service.note = "masquerade-all: the reply would pass the host by otherwise"
		}
		if base.lab.NetfilterCall && via != podIP.lab.Via {
			// The pod IP was measured under other rules: the ratio would mix two things.
			service.note = "has no pod IP to compare with: that was measured under iptables' rules"
			s.paths = append(s.paths, service)
			continue
		}
		s.paths = append(s.paths, service)
		s.pairs = append(s.pairs, pair{
			name: base.id + ": cluster IP by " + via + " / pod IP", numerator: service.id, denominator: podIP.id,
		})
	}
}

// addDatapath adds the rows of a link mode with our own datapath.
func (s *Suite) addDatapath(link string) {
	name := link + "+ebpf"
	base := path{link: link, via: result.ViaEBPFTC, lab: podLinksLab(link, lab.DatapathEBPF, lab.ViaEBPFTC)}
	s.paths = append(s.paths, base.toPod(name+"/pod-ip"), base.toService(name+"/cluster-ip"))
	s.pairs = append(s.pairs,
		pair{name: name + ": cluster IP / pod IP", numerator: name + "/cluster-ip", denominator: name + "/pod-ip"},
		pair{name: name + " / " + link + ": pod IP", numerator: name + "/pod-ip", denominator: link + "/pod-ip"})
}

func podLinksLab(link, datapath, via string) lab.Options {
	return lab.Options{Topology: "pod-links", Link: link, Datapath: datapath, Via: via}
}

// toPod returns the path from pod-b to pod-a's own address.
func (p path) toPod(id string) path {
	p.id, p.target, p.via = id, result.TargetPodIP, result.ViaNone
	p.client, p.server = lab.PodB, lab.PodA
	p.listen = netip.AddrPortFrom(lab.PodAIPs[0], lab.ServicePort)
	p.connect = p.listen
	return p
}

// toService returns the path from pod-b to the service that pod-a backs.
func (p path) toService(id string) path {
	via := p.via
	p = p.toPod(id)
	p.target, p.via = result.TargetClusterIP, via
	p.connect = lab.Services()[0].Frontend
	return p
}

// masqueraded reports whether the host hides the client's address from the
// server: where firewall rules translate the service, and replies would not pass
// them otherwise.
func (p path) masqueraded() bool {
	if p.via != result.ViaIPTables && p.via != result.ViaNFTables {
		return false
	}
	mode, err := podlink.Lookup(p.link)
	return err == nil && !mode.Routed() && !p.lab.NetfilterCall
}
