// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net/netip"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// Suite is a set of ways through a network that are measured side by side.
type Suite struct {
	// Name is what users call it.
	Name string
	// Doc says in one line what it compares.
	Doc   string
	paths []path
	pairs []pair
}

// Suites returns all suites, in the order in which they are listed.
func Suites() []Suite {
	return []Suite{podLinks()}
}

// LookupSuite returns the suite of that name.
func LookupSuite(name string) (Suite, error) {
	var known []string
	for _, suite := range Suites() {
		if suite.Name == name {
			return suite, nil
		}
		known = append(known, suite.Name)
	}
	return Suite{}, fmt.Errorf("unknown suite %q (there are: %s)", name, strings.Join(known, ", "))
}

// workloads are what every path is measured with.
func workloads() []string { return []string{traffic.TCPStream, traffic.TCPRR} }

// path is one way through a lab, from a client to what it connects to.
type path struct {
	id             string
	link, variant  string
	target, via    string
	note           string
	lab            lab.Options // without a name
	client, server string      // places in the lab
	connect        netip.AddrPort
	listen         netip.AddrPort
}

// datapath is the path's datapath in the words of the result file.
func (p path) datapath() string {
	if p.lab.Datapath == lab.DatapathEBPF {
		return result.DatapathEBPF
	}
	return result.DatapathKernel
}

// row returns the path's row for a workload, not measured yet.
func (p path) row(suite, workload string) result.Row {
	row := result.Row{
		Suite: suite, ID: p.id, Link: p.link, Variant: p.variant, Datapath: p.datapath(),
		Placement: result.PlacementSameHost, Overlay: result.OverlayNone, Target: p.target, Via: p.via,
		Family: "ipv4", Workload: workload, Engine: "native", Note: p.note,
	}
	if p.connect.Addr().Is6() {
		row.Family = "ipv6"
	}
	return row
}

// masqueraded reports whether the host hides the client's address from the
// server: where firewall rules translate the service, and replies would not pass
// them otherwise.
func (p path) masqueraded() bool {
	if p.via != result.ViaIPTables && p.via != result.ViaNFTables {
		return false
	}
	mode, err := podlink.Lookup(p.link)
	return err == nil && !mode.Routed() && !p.lab.NetfilterCall
}

// pair is a comparison of two paths.
type pair struct {
	name                   string
	numerator, denominator string
	aa                     bool
}

// label names a row in messages.
func label(row result.Row) string { return row.ID + " " + row.Workload }

// Rows returns the rows of the suite as they stand in a result file before
// anything is measured, for a listing.
func (s Suite) Rows() []result.Row {
	var rows []result.Row
	for _, workload := range workloads() {
		for _, p := range s.paths {
			rows = append(rows, p.row(s.Name, workload))
		}
	}
	return rows
}
