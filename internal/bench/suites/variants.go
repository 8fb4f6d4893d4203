// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
)

func ipv6() Suite {
	s := newSuite("pod-links-ipv6", "two pods of one host by IPv6, and what it costs against IPv4",
		"What does IPv6 cost between the pods of one host, and a cluster IP of it?", usualTCP()...)
	s.Report.Layout, s.Report.Answer = result.LayoutMatrix, []string{result.AnswerStatements, result.AnswerFastest}
	against := result.Statement{Caption: "IPv6 against IPv4", Subject: "by IPv6", Object: "by IPv4"}
	four := podLinks()
	for _, p := range four.Paths {
		link, rest, _ := strings.Cut(p.ID, "/")
		if !hasIPv6(p) {
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

// hasIPv6 reports whether a path of suite pod-links is measured by IPv6 too: of some links the pod IP, and with eBPF
// and iptables the pod IP and the cluster IP.
func hasIPv6(p Path) bool {
	name, rest, _ := strings.Cut(p.ID, "/")
	links := []string{"veth", "bridge-call-off", "macvlan", "ipvlan-l2", "netkit"}
	targets := []string{"pod-ip", "pod-ip/iptables", "cluster-ip/iptables", "cluster-ip"}
	return slices.Contains(links, strings.TrimSuffix(name, "+ebpf")) && slices.Contains(targets, rest)
}

func twoCPUs() Suite {
	s := newSuite("two-cpus", "client and server of a path on one CPU and on two, as most users have them",
		"What changes if client and server run on two CPUs?", usualTCP()...)
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
