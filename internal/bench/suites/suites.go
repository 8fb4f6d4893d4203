// SPDX-License-Identifier: Apache-2.0

// Package suites holds the suites that can be measured, as data: the paths of each, the
// workloads that run on them, and the pairs of paths that are compared. A suite answers
// one question ([Suite.Doc]). To add one, write its file and add it to [List].
package suites

import (
	"cmp"
	"fmt"
	"net/netip"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/podlink"
	"mustang/internal/result"
)

// Names that stand for suites.
const (
	// Default is the suite that runs if none is named.
	Default = "pod-links"
	// All stands for all suites, one after the other.
	All = "all"
)

// Suite is a set of paths that are measured side by side.
type Suite struct {
	// Name is the suite's name in commands and result files.
	Name string
	// Doc describes in one line what the suite compares.
	Doc string
	// Workloads run on every path.
	Workloads []Workload
	// Paths are the paths, in the order of their rows.
	Paths []Path
	// Pairs are the comparisons.
	Pairs []Pair
	// Report describes the suite in result files; see [Suite.Describe].
	Report result.Suite
	// CountedQuestion is the question in place of Report.Question where instructions
	// are counted.
	CountedQuestion string
	// adapt completes the description according to the suite's rows; nil if it does
	// not depend on them.
	adapt func(d *result.Suite, rows []result.Row)
}

// CallsPlugins reports whether the suite measures calls of CNI plugins, not traffic.
func (s Suite) CallsPlugins() bool { return len(s.Paths) > 0 && s.Paths[0].Plugin != nil }

// Rows returns the suite's rows as in a result file before any sample.
func (s Suite) Rows() []result.Row {
	var rows []result.Row
	for _, w := range s.Workloads {
		for _, p := range s.Paths {
			rows = append(rows, p.Row(s.Name, w))
		}
	}
	return rows
}

// Probe returns the reasons why this machine cannot build the networks of paths, by
// path ID. It has no entry for a path without a known reason.
func (s Suite) Probe() map[string]error {
	reasons := map[string]error{}
	for _, p := range s.Paths {
		if err := p.Probe(); err != nil {
			reasons[p.ID] = err
		}
	}
	return reasons
}

// addBaseline adds a path that others are compared with, and measures it twice.
func (s *Suite) addBaseline(p Path) {
	s.Paths = append(s.Paths, p)
	s.repeat(p)
}

// repeat adds a path again, and the comparison of both (A/A).
func (s *Suite) repeat(p Path) {
	again := p
	again.ID, again.Variant, again.Note = p.ID+"/again", "again", "the same as "+p.ID+", measured again"
	again.Repeats = p.ID
	s.Paths = append(s.Paths, again)
	s.Pairs = append(s.Pairs, Pair{Name: "A/A: " + p.ID + " measured twice", Numerator: again.ID, Denominator: p.ID, AA: true})
}

// compare adds the comparison of two paths.
func (s *Suite) compare(numerator, denominator string) {
	s.Pairs = append(s.Pairs, Pair{Name: numerator + " / " + denominator, Numerator: numerator, Denominator: denominator})
}

// Pair is a comparison of two paths of a suite.
type Pair struct {
	// Name describes the comparison.
	Name string
	// Numerator and Denominator are IDs of paths.
	Numerator, Denominator string
	// AA is true if both measure the same path.
	AA bool
}

// Workload is a workload of a suite.
type Workload struct {
	// Name is one of [load.Workloads], or of the workloads of CNI plugins.
	Name string
	// Flows is the number of concurrent connections or calls, at least 1.
	Flows int
	// Rate is the rate of a UDP stream in bits per second; 0 is unlimited.
	Rate uint64
}

// String returns the workload's name, followed by the number of flows if there are
// several.
func (w Workload) String() string {
	if w.Flows > 1 {
		return fmt.Sprintf("%s-%d", w.Name, w.Flows)
	}
	return w.Name
}

// tcpStreams returns a TCP stream over a number of connections.
func tcpStreams(flows int) Workload { return Workload{Name: load.TCPStream, Flows: flows} }

// udpStreams returns a UDP stream of 10 Gbit/s, the rate of article 003 on switching.
func udpStreams(flows int) Workload {
	return Workload{Name: load.UDPStream, Flows: flows, Rate: 10e9}
}

// tcpRR returns TCP request/response.
func tcpRR() Workload { return Workload{Name: load.TCPRR, Flows: 1} }

// Path is a path of a suite. It is measured with each of the suite's workloads.
type Path struct {
	evidence.Path
	// ID is unique in the suite.
	ID string
	// Variant, Overlay and Note are those of the path's rows; an empty Overlay means
	// none.
	Variant, Overlay, Note string
	// Label, Baseline and Repeats are those of the path's rows too.
	Label    string
	Baseline bool
	Repeats  string
	// Plugin is the CNI plugin whose calls are measured instead of traffic, nil for
	// traffic.
	Plugin *cnibench.Plugin
}

// Row returns the path's row for a workload, without samples.
func (p Path) Row(suite string, w Workload) result.Row {
	row := result.Row{
		Suite: suite, ID: p.ID, Link: p.Link, Variant: p.Variant, Datapath: p.Datapath(),
		Placement: result.PlacementSameHost, Overlay: cmp.Or(p.Overlay, result.OverlayNone), Target: p.Target, Via: p.Via,
		Family: "ipv4", Workload: w.Name, Engine: "native", Note: p.Note,
		Label: p.Label, Baseline: p.Baseline, Repeats: p.Repeats,
	}
	if p.TwoHosts() {
		row.Placement = result.PlacementTwoHosts
	}
	if p.Connect.Addr().Is6() {
		row.Family = "ipv6"
	}
	if w.Flows > 1 {
		row.Flows = w.Flows
	}
	if p.Plugin == nil {
		return row
	}
	row.Engine = "exec"
	if p.Plugin.HasServices() {
		row.Datapath = result.DatapathEBPF
	}
	return row
}

// Probe returns the reason why this machine cannot build the path's network, nil if
// none is known.
func (p Path) Probe() error {
	link := p.Lab.Link
	if p.Plugin != nil {
		link = p.Link
	}
	var unsupported error
	if mode, err := podlink.Lookup(link); err == nil { // hosts and containers have no mode
		unsupported = mode.Probe()
	}
	if p.Plugin == nil {
		return unsupported
	}
	return cmp.Or(unsupported, p.Plugin.Probe())
}

// connectTo returns the path with a server at an address, which its client connects to.
func (p Path) connectTo(server netip.Addr) Path {
	p.Listen = netip.AddrPortFrom(server, lab.ServicePort)
	p.Connect = p.Listen
	return p
}

// localhost is the IPv4 loopback address.
var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})
