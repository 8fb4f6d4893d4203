// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// podLinks compares the ways to connect two pods of one host, by pod IP and by
// cluster IP.
func podLinks() Suite {
	s := Suite{
		Name: "pod-links",
		Doc:  "two pods of one host: each link mode by pod IP and by cluster IP",
	}
	s.paths = append(s.paths, baselines()...)
	for _, l := range []struct {
		name, link, variant string
		call                bool
	}{
		{"veth", "veth", "", false},
		{"bridge-call-off", "bridge", "call-off", false},
		{"bridge-call-on", "bridge", "call-on", true},
		{"macvlan", "macvlan", "", false},
	} {
		base := path{link: l.link, variant: l.variant, lab: podLinksLab(l.link, lab.DatapathKernel, lab.ViaNone)}
		base.lab.NetfilterCall = l.call
		s.addLink(l.name, base)
	}
	for _, link := range []string{"veth", "macvlan"} {
		name := link + "+ebpf"
		base := path{link: link, via: result.ViaEBPFTC, lab: podLinksLab(link, lab.DatapathEBPF, lab.ViaEBPFTC)}
		s.paths = append(s.paths, base.toPod(name+"/pod-ip"), base.toService(name+"/cluster-ip"))
		s.pairs = append(s.pairs,
			pair{name: name + ": cluster IP / pod IP", numerator: name + "/cluster-ip", denominator: name + "/pod-ip"},
			pair{name: name + " / " + link + ": pod IP", numerator: name + "/pod-ip", denominator: link + "/pod-ip"})
	}
	return s
}

// baselines are what the links are held against, and the same path measured
// twice.
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
func (s *Suite) addLink(name string, base path) {
	podIP := base.toPod(name + "/pod-ip")
	if base.lab.NetfilterCall {
		// Without rules there is nothing to call.
		podIP.lab.Via = lab.ViaIPTables
		podIP.note = "kube-proxy's iptables rules are in the host, and see the bridged packets"
	}
	s.paths = append(s.paths, podIP)
	if name == "veth" {
		again := podIP
		again.id, again.variant, again.note = name+"/pod-ip/again", "again", "the same as "+podIP.id+", measured again"
		s.paths = append(s.paths, again)
		s.pairs = append(s.pairs, pair{name: "A/A: " + podIP.id + " measured twice", numerator: again.id, denominator: podIP.id, aa: true})
	}
	for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables} {
		service := base.toService(name + "/cluster-ip/" + via)
		service.via, service.lab.Via = via, via
		if base.link == "macvlan" || base.variant == "call-off" {
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
			name: name + ": cluster IP by " + via + " / pod IP", numerator: service.id, denominator: podIP.id,
		})
	}
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
