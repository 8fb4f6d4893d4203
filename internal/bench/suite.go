// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net/netip"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// Suite is a set of ways through a network that are measured side by side.
type Suite struct {
	// Name is what users call it.
	Name string
	// Doc says in one line what it compares.
	Doc string
	// workloads are what every path is measured with.
	workloads []workload
	paths     []path
	pairs     []pair
}

// DefaultSuite is what is run when none is named.
const DefaultSuite = "pod-links"

// All is the name that stands for all suites, one after the other.
const All = "all"

// Suites returns all suites, in the order in which they are listed and run.
func Suites() []Suite {
	return []Suite{interfaces(), latency(), podLinks(), switching(), docker(), cni()}
}

// LookupSuites returns the suite of that name, or all of them for [All].
func LookupSuites(name string) ([]Suite, error) {
	suites := Suites()
	if name == All {
		return suites, nil
	}
	var known []string
	for _, suite := range suites {
		if suite.Name == name {
			return []Suite{suite}, nil
		}
		known = append(known, suite.Name)
	}
	return nil, fmt.Errorf("unknown suite %q (there are: %s, %s)", name, strings.Join(known, ", "), All)
}

// workload is what a path is measured with.
type workload struct {
	name  string
	flows int    // connections side by side, at least 1
	rate  uint64 // what a stream of datagrams offers in bits per second; 0 is as fast as it can
}

// String is the workload's name, with the number of flows if there are several.
func (w workload) String() string {
	if w.flows > 1 {
		return fmt.Sprintf("%s-%d", w.name, w.flows)
	}
	return w.name
}

// Workloads of suites.
func tcpStreams(flows int) workload { return workload{name: traffic.TCPStream, flows: flows} }
func tcpRR() workload               { return workload{name: traffic.TCPRR, flows: 1} }

// udpStreams offer 10 Gbit/s, as article 003 on switching has iperf do.
func udpStreams(flows int) workload {
	return workload{name: traffic.UDPStream, flows: flows, rate: 10e9}
}

// path is one way through a lab, from a client to what it connects to.
type path struct {
	id             string
	link, variant  string
	overlay        string // as in a result file; empty means none
	target, via    string
	note           string
	lab            lab.Options // without a name
	client, server string      // places in the lab
	connect        netip.AddrPort
	listen         netip.AddrPort
	// route is what packets pass; nil in the topology pod-links, where the link mode
	// says so.
	route *route
	// plugin is what is called, where that is measured and no traffic.
	plugin *plugin
}

// datapath is the path's datapath in the words of the result file.
func (p path) datapath() string {
	if p.plugin != nil && p.plugin.serves() {
		return result.DatapathEBPF
	}
	if p.lab.Datapath == lab.DatapathEBPF {
		return result.DatapathEBPF
	}
	return result.DatapathKernel
}

// crossesWire reports whether the two ends of the path are on two hosts.
func (p path) crossesWire() bool { return p.route != nil && p.route.wire }

// placement is where the two ends of the path are.
func (p path) placement() string {
	if p.crossesWire() {
		return result.PlacementTwoHosts
	}
	return result.PlacementSameHost
}

// row returns the path's row for a workload, not measured yet.
func (p path) row(suite string, w workload) result.Row {
	row := result.Row{
		Suite: suite, ID: p.id, Link: p.link, Variant: p.variant, Datapath: p.datapath(),
		Placement: p.placement(), Overlay: p.overlay, Target: p.target, Via: p.via,
		Family: "ipv4", Workload: w.name, Engine: "native", Note: p.note,
	}
	if p.plugin != nil {
		row.Engine = "exec"
	}
	if w.flows > 1 {
		row.Flows = w.flows
	}
	if row.Overlay == "" {
		row.Overlay = result.OverlayNone
	}
	if p.connect.Addr().Is6() {
		row.Family = "ipv6"
	}
	return row
}

// pair is a comparison of two paths.
type pair struct {
	name                   string
	numerator, denominator string
	aa                     bool
}

// label names a row in messages, and to --only.
func label(row result.Row) string {
	return row.ID + " " + workload{name: row.Workload, flows: row.Flows}.String()
}

// Rows returns the rows of the suite as they stand in a result file before
// anything is measured, for a listing.
func (s Suite) Rows() []result.Row {
	var rows []result.Row
	for _, w := range s.workloads {
		for _, p := range s.paths {
			rows = append(rows, p.row(s.Name, w))
		}
	}
	return rows
}

// Missing returns why this machine can't build the network of one of the suite's
// rows, nil if nothing is known to be in the way.
func (s Suite) Missing(id string) error {
	for _, p := range s.paths {
		if p.id == id {
			return p.probe()
		}
	}
	return nil
}
