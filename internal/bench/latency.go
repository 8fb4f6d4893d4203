// SPDX-License-Identifier: Apache-2.0

package bench

import "mustang/internal/lab"

// latency compares what a pod's link adds to the time of a transaction with
// another host.
func latency() Suite {
	s := Suite{
		Name:      "latency",
		Doc:       "from a pod to another host: what each link adds to the latency of the host itself",
		workloads: []workload{tcpRR()},
	}
	baseline := across("host", lab.Options{Topology: twoHosts, Link: "host"}, ends{lab.HostB, lab.HostA})
	s.addBaseline(baseline)
	for _, way := range []struct {
		id string
		o  lab.Options
	}{
		{"veth-bridge-nat", lab.Options{Link: "bridge", NAT: true}},
		{"veth", lab.Options{Link: "veth"}},
		{"veth+ebpf", lab.Options{Link: "veth", Datapath: lab.DatapathEBPF, Via: lab.ViaEBPFTC}},
		{"macvlan", lab.Options{Link: "macvlan"}},
		{"ipvlan-l2", lab.Options{Link: "ipvlan-l2"}},
	} {
		way.o.Topology = podToHost
		p := across(way.id, way.o, ends{lab.PodB, lab.HostA})
		if way.o.NAT {
			p.variant, p.note = "nat", "a bridge behind the host's address, as Docker has it"
		}
		s.paths = append(s.paths, p)
		s.compare(p.id, baseline.id)
	}
	return s
}

// addBaseline adds a path that others are compared to, and measures it again.
func (s *Suite) addBaseline(p path) {
	again := p
	again.id, again.variant, again.note = p.id+"/again", "again", "the same as "+p.id+", measured again"
	s.paths = append(s.paths, p, again)
	s.pairs = append(s.pairs, pair{name: "A/A: " + p.id + " measured twice", numerator: again.id, denominator: p.id, aa: true})
}

// compare sets one path against another.
func (s *Suite) compare(numerator, denominator string) {
	s.pairs = append(s.pairs, pair{name: numerator + " / " + denominator, numerator: numerator, denominator: denominator})
}
