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
			Question: "What changes if client and server run on two CPUs?",
			Answer:   []string{result.AnswerStatements}, Variants: true,
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
	against := result.Statement{Caption: "Two CPUs against one", Subject: "on two CPUs", Object: "on one"}
	for _, p := range all {
		s.Paths = append(s.Paths, p)
		two := p
		two.ID, two.Label, two.TwoCPUs, two.Variant = p.ID+"@2cpus", p.ID+"@2cpus", true, "two CPUs"
		s.Paths = append(s.Paths, two)
		s.compare(two.ID, p.ID)
		against.Pairs = append(against.Pairs, result.Pair{Numerator: two.ID, Denominator: p.ID, Label: p.ID})
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
