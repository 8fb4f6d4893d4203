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
	for _, rules := range []int{oneRule, fewRules, manyRules} {
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

// policyVias are the implementations of network policies, the most usual first.
func policyVias() []string { return []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaEBPFTC} }

// policyID returns the ID of the path past so many rules.
func policyID(via string, rules int) string {
	return fmt.Sprintf("%s/%d", map[bool]string{true: "ebpf", false: via}[via == lab.ViaEBPFTC], rules)
}

// addPolicies adds the paths past so many rules.
func (s *Suite) addPolicies(rules int) {
	ours := policyID(lab.ViaEBPFTC, rules)
	for _, via := range policyVias() {
		p := podPath(policyID(via, rules), "veth")
		p.Lab.Policy, p.Lab.PolicyRules = via, rules
		p.Variant = fmt.Sprintf("%d rules", rules)
		p.Long = rules > fewRules
		without := "pod-ip"
		if via == lab.ViaEBPFTC {
			p.Lab.Datapath, p.Lab.Via = lab.DatapathEBPF, lab.ViaEBPFTC
			without = "pod-ip+ebpf"
		}
		s.Paths = append(s.Paths, p)
		s.compare(p.ID, without)
		if rules > oneRule {
			s.compare(p.ID, policyID(via, oneRule))
		}
		if p.ID != ours {
			s.compare(ours, p.ID)
		}
	}
}

// describePolicies completes the suite's description.
func (s *Suite) describePolicies() {
	names := map[string]string{lab.ViaIPTables: "iptables", lab.ViaNFTables: "nftables", lab.ViaEBPFTC: "eBPF"}
	colors := map[string]string{lab.ViaIPTables: result.ColorSlate, lab.ViaNFTables: result.ColorOrange, lab.ViaEBPFTC: result.ColorBlue}
	captions := map[int]string{oneRule: "1 rule", fewRules: "100 rules", manyRules: "10,000 rules"}
	series := map[string]*result.Series{}
	for _, via := range policyVias() {
		series[via] = &result.Series{Name: names[via], Color: colors[via]}
	}
	for _, rules := range []int{oneRule, fewRules, manyRules} {
		group := result.Group{Caption: captions[rules]}
		against := result.Statement{Caption: captions[rules] + " against none"}
		for _, via := range policyVias() {
			id := policyID(via, rules)
			group.Rows = append(group.Rows, id)
			series[via].Rows = append(series[via].Rows, id)
			without := "pod-ip"
			if via == lab.ViaEBPFTC {
				without = "pod-ip+ebpf"
			}
			against.Pairs = append(against.Pairs, result.Pair{Numerator: id, Denominator: without, Label: names[via]})
		}
		s.Report.Groups = append(s.Report.Groups, group)
		s.Report.Statements = append(s.Report.Statements, against)
	}
	for _, via := range policyVias() {
		s.Report.Series = append(s.Report.Series, *series[via])
	}
}
