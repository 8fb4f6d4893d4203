// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// Numbers of services.
const (
	fewServices  = 10
	someServices = 1_000
	manyServices = 10_000
	mostServices = lab.MaxServices
)

// ServiceWorkloads lists the workloads that measure a table of services, not traffic.
func ServiceWorkloads() []string {
	return []string{
		result.WorkloadFirstPacket, result.WorkloadFirstPacketP99, result.WorkloadServiceProgram, result.WorkloadServiceChange,
		result.WorkloadServiceMemory,
	}
}

// services compares implementations of services by the number of services.
func services() Suite {
	s := Suite{
		Name:      "services",
		Doc:       "services by eBPF, iptables, nftables and IPVS, among 10 to 100,000 of them",
		Workloads: []Workload{tcpStreams(1), tcpRR(), tcpCRR()},
		Report: result.Suite{
			Question: "What does a service cost among many, and how fast do changes take effect?",
			Answer:   []string{result.AnswerGrid, result.AnswerStatements},
		},
		CountedQuestion: "How many instructions does a service cost among many?",
	}
	for _, name := range ServiceWorkloads() {
		s.Workloads = append(s.Workloads, Workload{Name: name, Flows: 1})
	}
	podIP := podPath("pod-ip", "veth")
	s.addBaseline(podIP)
	s.Report.Reference = podIP.ID
	for _, number := range []int{fewServices, someServices, manyServices, mostServices} {
		s.addServices(number)
	}
	s.describeServices()
	return s
}

// serviceVias are the implementations of services, the most usual first.
func serviceVias() []string {
	return []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS, lab.ViaEBPFTC, lab.ViaEBPFSocket}
}

// tooManyServices says why rules end at a number of services. Each of kube-proxy's chains for
// nftables has an anonymous set, whose name the kernel finds by comparing it with all others.
const tooManyServices = "rules for 100,000 services take kube-proxy's tools hours: their time grows with the square of the number"

// serviceID returns the ID of the path by an implementation among so many services.
func serviceID(via string, number int) string { return fmt.Sprintf("%s/%d", via, number) }

// besideID returns the ID of the path to the pod IP in a network with so many services.
func besideID(via string, number int) string { return "pod-ip/" + serviceID(via, number) }

// hasBeside reports whether the pod IP is measured too in the networks with so many services.
func hasBeside(number int) bool { return number == fewServices || number == manyServices }

// addServices adds the paths among so many services.
func (s *Suite) addServices(number int) {
	for _, via := range serviceVias() {
		if via == lab.ViaIPVS && number > manyServices { // each is a call of the kernel
			continue
		}
		podIP := podPath(besideID(via, number), "veth")
		podIP.Lab.Via, podIP.Lab.Services = via, number
		podIP.Variant = fmt.Sprintf("%d services", number)
		if via == lab.ViaEBPFTC {
			podIP.Lab.Datapath = lab.DatapathEBPF
		}
		if podIP.Long = number > someServices; hasRules(via) && number > manyServices {
			podIP.Skip = tooManyServices
		}
		p := podIP.toService(via)
		p.ID = serviceID(via, number)
		if hasBeside(number) {
			s.Paths = append(s.Paths, podIP)
			s.ask(result.AsksProxy, podIP.ID, "pod-ip")
			s.ask(result.AsksService, p.ID, podIP.ID)
		}
		s.Paths = append(s.Paths, p)
		s.ask(result.AsksTotal, p.ID, "pod-ip")
		if number > fewServices {
			s.compare(p.ID, serviceID(via, fewServices))
		}
	}
	s.compare(serviceID(lab.ViaEBPFTC, number), serviceID(lab.ViaEBPFSocket, number))
	for _, by := range []string{lab.ViaEBPFTC, lab.ViaEBPFSocket} {
		s.compare(serviceID(by, number), serviceID(lab.ViaIPTables, number))
		s.compare(serviceID(by, number), serviceID(lab.ViaNFTables, number))
		if number <= manyServices {
			s.compare(serviceID(by, number), serviceID(lab.ViaIPVS, number))
		}
	}
}

// hasTable reports whether a workload of tables measures the path: those with a network policy, and those to services
// among others. Socket translation has the same tables as the programs for packets, and rules for
// many services take minutes to write.
func (p Path) hasTable(w Workload) bool {
	if w.OfPolicies() {
		return p.Lab.Policy != ""
	}
	workload := w.Name
	if p.Lab.Services == 0 || p.Target != result.TargetClusterIP {
		return false
	}
	writes := workload == result.WorkloadServiceProgram || workload == result.WorkloadServiceMemory
	rules := hasRules(p.Via)
	switch {
	case writes && p.Via == result.ViaEBPFSocket, writes && rules && p.Lab.Services > someServices:
		return false
	case workload == result.WorkloadServiceMemory: // few services have too little
		return p.Lab.Services >= someServices
	}
	return true
}

// describeServices completes the suite's description.
func (s *Suite) describeServices() {
	names := map[string]string{
		lab.ViaIPTables: "iptables", lab.ViaNFTables: "nftables", lab.ViaIPVS: "IPVS", lab.ViaEBPFTC: "eBPF per packet", lab.ViaEBPFSocket: "eBPF at the socket",
	}
	colors := map[string]string{
		lab.ViaIPTables: result.ColorSlate, lab.ViaNFTables: result.ColorOrange, lab.ViaIPVS: result.ColorPurple, lab.ViaEBPFTC: result.ColorBlue, lab.ViaEBPFSocket: result.ColorTeal,
	}
	series := map[string]*result.Series{}
	for _, via := range serviceVias() {
		series[via] = &result.Series{Name: names[via], Color: colors[via]}
	}
	s.Report.Statements = append(s.Report.Statements, costsOfServices(names)...)
	count := map[int]string{fewServices: "10", someServices: "1,000", manyServices: "10,000", mostServices: "100,000"}
	for _, number := range []int{fewServices, someServices, manyServices, mostServices} {
		group := result.Group{Caption: count[number] + " services"}
		for _, via := range serviceVias() {
			id := serviceID(via, number)
			if !slices.ContainsFunc(s.Paths, func(p Path) bool { return p.ID == id }) {
				continue
			}
			group.Rows = append(group.Rows, id)
			series[via].Rows = append(series[via].Rows, id)
		}
		s.Report.Groups = append(s.Report.Groups, group)
	}
	among := result.Statement{Caption: "A cluster IP among 10,000 services"}
	for _, by := range []string{lab.ViaEBPFTC, lab.ViaEBPFSocket} {
		for _, rules := range []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS} {
			among.Pairs = append(among.Pairs, result.Pair{
				Numerator: serviceID(by, manyServices), Denominator: serviceID(rules, manyServices), Label: names[by] + " against " + names[rules],
			})
		}
	}
	s.Report.Statements = append(s.Report.Statements, among)
	for _, number := range []int{manyServices, mostServices} {
		against := result.Statement{Caption: count[number] + " services against 10"}
		for _, via := range serviceVias() {
			if number > manyServices && hasRules(via) {
				continue
			}
			against.Pairs = append(against.Pairs, result.Pair{
				Numerator: serviceID(via, number), Denominator: serviceID(via, fewServices), Label: names[via],
			})
		}
		s.Report.Statements = append(s.Report.Statements, against)
	}
	for _, via := range serviceVias() {
		s.Report.Series = append(s.Report.Series, *series[via])
	}
}

// costsOfServices states the two costs of implementations, by their names.
func costsOfServices(names map[string]string) []result.Statement {
	all := result.Statement{Caption: "All traffic in a network with 10,000 services, pod IP against that without services"}
	one := result.Statement{Caption: "A cluster IP among 10,000 services against the pod IP beside it"}
	for _, via := range serviceVias() {
		beside := besideID(via, manyServices)
		all.Pairs = append(all.Pairs, result.Pair{Numerator: beside, Denominator: "pod-ip", Label: names[via]})
		service := serviceID(via, manyServices)
		one.Pairs = append(one.Pairs, result.Pair{Numerator: service, Denominator: beside, Label: names[via]})
	}
	return []result.Statement{all, one}
}

// hasRules reports whether an implementation is of kube-proxy's rules.
func hasRules(via string) bool {
	return via == lab.ViaIPTables || via == lab.ViaNFTables || via == lab.ViaIPVS
}
