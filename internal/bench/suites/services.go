// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"

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

func serviceNumbers() []int { return []int{fewServices, someServices, manyServices, mostServices} }

// ServiceWorkloads lists the workloads that measure a table of services, not traffic.
func ServiceWorkloads() []string {
	return []string{
		result.WorkloadFirstPacket, result.WorkloadFirstPacketP99, result.WorkloadServiceProgram, result.WorkloadServiceChange,
		result.WorkloadServiceMemory,
	}
}

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
	for _, number := range serviceNumbers() {
		s.addServices(number)
	}
	s.describeServices()
	return s
}

func serviceVias() []string {
	return []string{lab.ViaIPTables, lab.ViaNFTables, lab.ViaIPVS, lab.ViaEBPFTC, lab.ViaEBPFSocket}
}

// tooManyServices says why rules end at a number of services. Each of kube-proxy's chains for
// nftables has an anonymous set, whose name the kernel finds by comparing it with all others.
const tooManyServices = "rules for 100,000 services take kube-proxy's tools hours: their time grows with the square of the number"

// serviceID returns the ID of the path by an implementation among so many services.
func serviceID(via string, number int) string { return fmt.Sprintf("%s/%d", via, number) }

func besideID(via string, number int) string { return "pod-ip/" + serviceID(via, number) }

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
		if number == fewServices || number == manyServices {
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

func (s *Suite) describeServices() {
	kinds := []kind{
		{lab.ViaIPTables, "iptables", result.ColorSlate}, {lab.ViaNFTables, "nftables", result.ColorOrange},
		{lab.ViaIPVS, "IPVS", result.ColorPurple}, {lab.ViaEBPFTC, "eBPF per packet", result.ColorBlue},
		{lab.ViaEBPFSocket, "eBPF at the socket", result.ColorTeal},
	}
	ids := func(numerator, denominator func(via string) string, kinds []kind) (pairs []result.Pair) {
		for _, k := range kinds {
			pairs = append(pairs, result.Pair{Numerator: numerator(k.via), Denominator: denominator(k.via), Label: k.name})
		}
		return pairs
	}
	among := func(number int) func(string) string {
		return func(via string) string { return serviceID(via, number) }
	}
	beside := func(via string) string { return besideID(via, manyServices) }
	none := func(string) string { return "pod-ip" }
	s.addGrid(kinds, serviceNumbers(), " services", serviceID)
	mixed := result.Statement{Caption: "A cluster IP among 10,000 services"}
	for _, by := range kinds[3:] {
		for _, rules := range kinds[:3] {
			mixed.Pairs = append(mixed.Pairs, result.Pair{
				Numerator: serviceID(by.via, manyServices), Denominator: serviceID(rules.via, manyServices),
				Label: by.name + " against " + rules.name,
			})
		}
	}
	s.Report.Statements = []result.Statement{
		{
			Caption: "All traffic in a network with 10,000 services, pod IP against that without services",
			Pairs:   ids(beside, none, kinds),
		},
		{
			Caption: "A cluster IP among 10,000 services against the pod IP beside it",
			Pairs:   ids(among(manyServices), beside, kinds),
		},
		mixed,
		{Caption: "10,000 services against 10", Pairs: ids(among(manyServices), among(fewServices), kinds)},
		{Caption: "100,000 services against 10", Pairs: ids(among(mostServices), among(fewServices), kinds[3:])},
	}
}

type kind struct{ via, name, color string }

// addGrid describes rows that differ in their implementation and in a number of things: it adds a series for each
// implementation, and a group for each number.
func (s *Suite) addGrid(kinds []kind, numbers []int, things string, id func(via string, number int) string) {
	series := make([]result.Series, len(kinds))
	for _, number := range numbers {
		group := result.Group{Caption: grouped(number) + things}
		for i, k := range kinds {
			series[i].Name, series[i].Color = k.name, k.color
			if id := id(k.via, number); s.has(id) {
				group.Rows, series[i].Rows = append(group.Rows, id), append(series[i].Rows, id)
			}
		}
		s.Report.Groups = append(s.Report.Groups, group)
	}
	s.Report.Series = series
}

// grouped returns a number below a million with a comma before its last three digits.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// hasRules reports whether an implementation is of kube-proxy's rules.
func hasRules(via string) bool {
	return via == lab.ViaIPTables || via == lab.ViaNFTables || via == lab.ViaIPVS
}
