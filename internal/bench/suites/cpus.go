// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"mustang/internal/lab"
	"mustang/internal/result"
)

// twoCPUs compares paths whose client and server share a CPU with the same on two CPUs.
func twoCPUs() Suite {
	s := Suite{
		Name:      "two-cpus",
		Doc:       "client and server of a path on one CPU and on two, as most users have them",
		Workloads: []Workload{tcpStreams(1), tcpRR(), tcpCRR()},
		Report: result.Suite{
			Question: "What changes if client and server run on two CPUs?", Noun: "way of connecting pods",
			Answer: []string{result.AnswerStatements, result.AnswerRanking}, Variants: true,
		},
		CountedQuestion: "How many instructions do the ways of connecting pods take? (Timed runs compare one CPU with two.)",
	}
	var all []Path
	for _, p := range podLinks().Paths {
		switch p.ID {
		case "loopback", "veth/pod-ip", "bridge-call-off/pod-ip", "macvlan/pod-ip", "veth+ebpf/pod-ip", "veth+ebpf/cluster-ip",
			"veth/cluster-ip/" + lab.ViaNFTables:
			p.Label, p.Baseline, p.Note = p.ID, false, ""
			all = append(all, p)
		}
	}
	for _, p := range all {
		s.Paths = append(s.Paths, p)
		two := p
		two.ID, two.Label, two.TwoCPUs, two.Variant = p.ID+"@2cpus", p.ID+"@2cpus", true, "two CPUs"
		s.Paths = append(s.Paths, two)
		s.compare(two.ID, p.ID)
		s.Report.Statements = append(s.Report.Statements, statement(p.ID+" on two CPUs against one", two.ID, p.ID))
		if p.ID == "veth/pod-ip" {
			s.repeat(p)
			s.repeat(two)
			continue
		}
		s.compare(two.ID, "veth/pod-ip@2cpus")
	}
	return s
}
