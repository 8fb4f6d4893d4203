// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"slices"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/result"
)

// kind is an implementation of a grid: rows differ in it, and in a number of things.
type kind struct{ via, name, color string }

// addGrid describes the rows of a grid, whose IDs are given: a series for each implementation, a group for each number.
func (s *Suite) addGrid(kinds []kind, numbers []int, things string, id func(via string, number int) string) {
	for _, k := range kinds {
		s.Report.Series = append(s.Report.Series, result.Series{Name: k.name, Color: k.color})
	}
	for _, number := range numbers {
		group := result.Group{Caption: grouped(number) + things}
		for i, k := range kinds {
			if p, ok := s.path(id(k.via, number)); ok {
				series := &s.Report.Series[i]
				group.Rows, series.Rows = append(group.Rows, p.ID), append(series.Rows, p.ID)
			}
		}
		s.Report.Groups = append(s.Report.Groups, group)
	}
}

func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

func (s *Suite) stateGrid(caption string, kinds []kind, numerator, denominator func(via string) string) {
	statement := result.Statement{Caption: caption}
	for _, k := range kinds {
		statement.Pairs = append(statement.Pairs, pairOf(numerator(k.via), denominator(k.via), k.name))
	}
	s.Report.Statements = append(s.Report.Statements, statement)
}

const (
	fewServices  = 10
	someServices = 1_000
	manyServices = 10_000
	mostServices = lab.MaxServices
)

// tooManyServices is why rules end at a number of services. Each of kube-proxy's chains for nftables has an
// anonymous set. The kernel finds its name by comparing it with all others.
const tooManyServices = "rules for 100,000 services take kube-proxy's tools hours: their time grows with the square " +
	"of the number"

// ServiceWorkloads lists the workloads that measure a table of services, not traffic.
func ServiceWorkloads() []string {
	return []string{
		result.WorkloadFirstPacket, result.WorkloadFirstPacketP99, result.WorkloadServiceProgram,
		result.WorkloadServiceChange, result.WorkloadServiceMemory,
	}
}

var (
	ruleKinds = []kind{
		{lab.ViaIPTables, "iptables", result.ColorSlate}, {lab.ViaNFTables, "nftables", result.ColorOrange},
		{lab.ViaIPVS, "IPVS", result.ColorPurple},
	}
	ebpfKinds = []kind{
		{lab.ViaEBPFTC, "eBPF per packet", result.ColorBlue}, {lab.ViaEBPFSocket, "eBPF per socket", result.ColorTeal},
	}
	serviceKinds = slices.Concat(ruleKinds, ebpfKinds)
)

func serviceID(via string, number int) string { return fmt.Sprintf("%s/%d", via, number) }

func services() Suite {
	s := newSuite("What does a service cost among many, and how fast do changes take effect?",
		usualTCP(ServiceWorkloads()...)...)
	s.Report.Answer, s.Report.Reference = []string{result.AnswerGrid, result.AnswerStatements}, "pod-ip"
	s.addBaseline(podPath("pod-ip", "veth"))
	numbers := []int{fewServices, someServices, manyServices, mostServices}
	for _, number := range numbers {
		s.addServices(number)
	}
	s.addGrid(serviceKinds, numbers, " services", serviceID)
	among := func(number int) func(string) string {
		return func(via string) string { return serviceID(via, number) }
	}
	beside := func(via string) string { return "pod-ip/" + serviceID(via, manyServices) }
	s.stateGrid("All traffic in a network with 10,000 services, pod IP against that without services", serviceKinds,
		beside, func(string) string { return "pod-ip" })
	s.stateGrid("A cluster IP among 10,000 services against the pod IP beside it", serviceKinds,
		among(manyServices), beside)
	mixed := result.Statement{Caption: "A cluster IP among 10,000 services"}
	for _, by := range ebpfKinds {
		for _, rules := range ruleKinds {
			mixed.Pairs = append(mixed.Pairs, pairOf(serviceID(by.via, manyServices), serviceID(rules.via, manyServices),
				by.name+" against "+rules.name))
		}
	}
	s.Report.Statements = append(s.Report.Statements, mixed)
	s.stateGrid("10,000 services against 10", serviceKinds, among(manyServices), among(fewServices))
	s.stateGrid("100,000 services against 10", ebpfKinds, among(mostServices), among(fewServices))
	return s
}

func (s *Suite) addServices(number int) {
	for _, k := range serviceKinds {
		via := k.via
		if via == lab.ViaIPVS && number > manyServices { // each is a call of the kernel
			continue
		}
		podIP := podPath("pod-ip/"+serviceID(via, number), "veth")
		podIP.Lab.Via, podIP.Lab.Services = via, number
		podIP.Variant, podIP.Long = fmt.Sprintf("%d services", number), number > someServices
		if via == lab.ViaEBPFTC {
			podIP.Lab.Datapath = lab.DatapathEBPF
		}
		if evidence.ByRules(via) && number > manyServices {
			podIP.Skip = tooManyServices
		}
		p := podIP.toService(via)
		p.ID = serviceID(via, number)
		if number == fewServices || number == manyServices {
			s.add(podIP)
			s.ask(result.AsksProxy, podIP.ID, "pod-ip")
			s.ask(result.AsksService, p.ID, podIP.ID)
		}
		s.add(p)
		s.ask(result.AsksTotal, p.ID, "pod-ip")
		if number > fewServices {
			s.compare(p.ID, serviceID(via, fewServices))
		}
	}
	s.compare(serviceID(lab.ViaEBPFTC, number), serviceID(lab.ViaEBPFSocket, number))
	for _, by := range ebpfKinds {
		for _, rules := range ruleKinds {
			if rules.via != lab.ViaIPVS || number <= manyServices {
				s.compare(serviceID(by.via, number), serviceID(rules.via, number))
			}
		}
	}
}

// hasTable reports whether a workload of tables measures the path: a path with a network policy, or to a cluster IP
// among further services. Socket translation has the same tables as the programs for packets, and rules for many
// services take minutes to write.
func (p Path) hasTable(w Workload) bool {
	memory := w.Name == result.WorkloadServiceMemory
	switch writes := memory || w.Name == result.WorkloadServiceProgram; {
	case w.ofPolicies():
		return p.Lab.Policy != ""
	case p.Lab.Services == 0, p.Target != result.TargetClusterIP:
		return false
	case writes && (p.Via == result.ViaEBPFSocket || evidence.ByRules(p.Via) && p.Lab.Services > someServices):
		return false
	}
	return !memory || p.Lab.Services >= someServices // few services have too little
}

var policyWorkloads = []string{result.WorkloadPolicyApply, result.WorkloadPolicyChange}

func policyID(via string, rules int) string {
	if via == lab.ViaEBPFTC {
		via = "ebpf"
	}
	return fmt.Sprintf("%s/%d", via, rules)
}

func withoutPolicy(via string) string {
	if via == lab.ViaEBPFTC {
		return "pod-ip+ebpf"
	}
	return "pod-ip"
}

func policy() Suite {
	s := newSuite("What does a network policy cost, and how fast does it take effect?", usualTCP(policyWorkloads...)...)
	s.Report.Answer, s.Report.Reference = []string{result.AnswerGrid, result.AnswerStatements}, "pod-ip"
	podIP, over := podPath("pod-ip", "veth"), ebpfPath("pod-ip+ebpf", "veth")
	podIP.Note, over.Note = "without rules", "programs on the pods' links, without policies"
	unguarded := over
	unguarded.ID, unguarded.Variant, unguarded.Lab.Unguarded = "pod-ip+ebpf/unguarded", "unguarded", true
	unguarded.Note = "the same without source guard"
	s.addBaseline(podIP)
	s.addBaseline(over)
	s.add(unguarded)
	s.compare(over.ID, podIP.ID)
	s.compare(over.ID, unguarded.ID)
	kinds, numbers := append(slices.Clone(ruleKinds[:2]), kind{lab.ViaEBPFTC, "eBPF", result.ColorBlue}),
		[]int{1, 100, 10_000}
	for _, rules := range numbers {
		for _, k := range kinds {
			p := podPath(policyID(k.via, rules), "veth")
			if k.via == lab.ViaEBPFTC {
				p = ebpfPath(p.ID, "veth")
			}
			p.Lab.Policy, p.Lab.PolicyRules = k.via, rules
			p.Variant, p.Long = fmt.Sprintf("%d rules", rules), rules > 100
			s.add(p, withoutPolicy(k.via))
			if rules > 1 {
				s.compare(p.ID, policyID(k.via, 1))
			}
			if ours := policyID(lab.ViaEBPFTC, rules); p.ID != ours {
				s.compare(ours, p.ID)
			}
		}
	}
	s.addGrid(kinds, numbers, " rules", policyID)
	s.Report.Groups[0].Caption = "1 rule"
	for i, rules := range numbers {
		s.stateGrid(s.Report.Groups[i].Caption+" against none", kinds,
			func(via string) string { return policyID(via, rules) }, withoutPolicy)
	}
	return s
}
