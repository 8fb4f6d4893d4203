// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// ipv6 compares pod IPs and cluster IPs of IPv6 with each other, and with the pod IP of IPv4.
func ipv6() Suite {
	s := Suite{
		Name:      "pod-links-ipv6",
		Doc:       "two pods of one host by IPv6, and what it costs against IPv4",
		Workloads: []Workload{tcpStreams(1), tcpRR(), tcpCRR()},
		Report: result.Suite{
			Question: "What does IPv6 cost between the pods of one host, and a cluster IP of it?",
			Layout:   result.LayoutMatrix, Noun: "way of connecting pods",
			Answer: []string{result.AnswerStatements, result.AnswerServiceCost, result.AnswerFastest},
		},
		CountedQuestion: "How many instructions does IPv6 take between the pods of one host, and a cluster IP of it?",
	}
	against := result.Statement{Caption: "IPv6 against IPv4", Subject: "by IPv6", Object: "by IPv4", Range: true}
	links := []string{"veth", "bridge-call-off", "macvlan", "ipvlan-l2", "netkit"}
	for _, p := range podLinks().Paths {
		name, rest, found := strings.Cut(p.ID, "/")
		link := strings.TrimSuffix(name, "+ebpf")
		if !found || !slices.Contains(links, link) || p.Repeats != "" {
			continue
		}
		if p.Target == result.TargetPodIP {
			s.Paths = append(s.Paths, p)
		}
		six := p
		six.ID = name + "/ipv6/" + rest
		six.Listen = withAddr(p.Listen, lab.PodAIPs[1])
		six.Connect = six.Listen
		if p.Target == result.TargetClusterIP {
			six.Connect = lab.Services()[1].Frontend
			s.Paths = append(s.Paths, six)
			s.compare(six.ID, name+"/ipv6/pod-ip")
			continue
		}
		s.compare(six.ID, p.ID)
		against.Pairs = append(against.Pairs, result.Pair{Numerator: six.ID, Denominator: p.ID, Label: name})
		if p.ID == "veth/pod-ip" {
			s.addBaseline(six)
			continue
		}
		s.Paths = append(s.Paths, six)
	}
	s.Report.Statements = []result.Statement{against}
	return s
}

// withAddr returns an address with the port of another one.
func withAddr(p netip.AddrPort, addr netip.Addr) netip.AddrPort {
	return netip.AddrPortFrom(addr, p.Port())
}
