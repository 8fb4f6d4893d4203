// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// Numbers of rules of a network policy.
const (
	oneRule   = 1
	fewRules  = 100
	manyRules = 10_000
)

// policy compares implementations of a network policy by the number of its rules.
func policy() Suite {
	s := Suite{
		Name:      "policy",
		Doc:       "a network policy of 1 to 10,000 rules by eBPF, iptables and nftables, and none",
		Workloads: []Workload{tcpStreams(1), tcpRR(), tcpCRR()},
		Report: result.Suite{
			Question: "What does a network policy cost, and how fast does it take effect?",
			Answer:   []string{result.AnswerGrid, result.AnswerStatements},
		},
		CountedQuestion: "How many instructions does a network policy cost?",
	}
	podIP := podPath("pod-ip", "veth")
	podIP.Note = "without rules"
	s.addBaseline(podIP)
	s.Report.Reference = podIP.ID
	over := podPath("pod-ip+ebpf", "veth")
	over.Lab.Datapath, over.Lab.Via = lab.DatapathEBPF, lab.ViaEBPFTC
	over.Note = "programs on the pods' links, without policies"
	s.addBaseline(over)
	unguarded := over
	unguarded.ID, unguarded.Variant, unguarded.Lab.Unguarded = "pod-ip+ebpf/unguarded", "unguarded", true
	unguarded.Note = "the same without source guard"
	s.Paths = append(s.Paths, unguarded)
	s.compare(over.ID, podIP.ID)
	s.compare(over.ID, unguarded.ID)
	for _, rules := range policyNumbers() {
		s.addPolicies(rules)
	}
	for _, name := range PolicyWorkloads() {
		s.Workloads = append(s.Workloads, Workload{Name: name, Flows: 1})
	}
	s.describePolicies()
	return s
}

// PolicyWorkloads lists the workloads that measure changes of network policies, not traffic.
func PolicyWorkloads() []string {
	return []string{result.WorkloadPolicyApply, result.WorkloadPolicyChange}
}

func policyNumbers() []int { return []int{oneRule, fewRules, manyRules} }

func policyID(via string, rules int) string {
	return fmt.Sprintf("%s/%d", map[bool]string{true: "ebpf", false: via}[via == lab.ViaEBPFTC], rules)
}

func (s *Suite) addPolicies(rules int) {
	ours := policyID(lab.ViaEBPFTC, rules)
	for _, via := range []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaEBPFTC} {
		p := podPath(policyID(via, rules), "veth")
		p.Lab.Policy, p.Lab.PolicyRules = via, rules
		p.Variant = fmt.Sprintf("%d rules", rules)
		p.Long = rules > fewRules
		if via == lab.ViaEBPFTC {
			p.Lab.Datapath, p.Lab.Via = lab.DatapathEBPF, lab.ViaEBPFTC
		}
		s.Paths = append(s.Paths, p)
		s.compare(p.ID, withoutPolicy(via))
		if rules > oneRule {
			s.compare(p.ID, policyID(via, oneRule))
		}
		if p.ID != ours {
			s.compare(ours, p.ID)
		}
	}
}

func (s *Suite) describePolicies() {
	kinds := []kind{
		{lab.ViaIPTables, "iptables", result.ColorSlate}, {lab.ViaNFTables, "nftables", result.ColorOrange},
		{lab.ViaEBPFTC, "eBPF", result.ColorBlue},
	}
	s.addGrid(kinds, policyNumbers(), " rules", policyID)
	s.Report.Groups[0].Caption = "1 rule"
	for i, rules := range policyNumbers() {
		against := result.Statement{Caption: s.Report.Groups[i].Caption + " against none"}
		for _, k := range kinds {
			against.Pairs = append(against.Pairs, result.Pair{
				Numerator: policyID(k.via, rules), Denominator: withoutPolicy(k.via), Label: k.name,
			})
		}
		s.Report.Statements = append(s.Report.Statements, against)
	}
}

// withoutPolicy returns the ID of the path that an implementation's paths are compared with.
func withoutPolicy(via string) string {
	if via == lab.ViaEBPFTC {
		return "pod-ip+ebpf"
	}
	return "pod-ip"
}
