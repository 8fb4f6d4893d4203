// SPDX-License-Identifier: Apache-2.0

// Package suites holds the suites as data: their paths, the workloads on a path, the pairs that are compared. A suite
// answers one question ([Suite.Doc]). To add one, write its file and add it to the entries of [List].
package suites

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/engine"
	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/vm"
)

// Suite is a set of paths that are measured side by side.
type Suite struct {
	Name      string     // in commands and result files
	Doc       string     // the comparison of the suite, in one line
	Workloads []Workload // run on every path
	Paths     []Path     // in the order of their rows
	Pairs     []Pair     // the comparisons
	// QuickPaths and QuickWorkloads are the paths and workloads of a quick run; none means all usual ones.
	QuickPaths, QuickWorkloads []string
	Report                     result.Suite // describes the suite in result files; see [Suite.Describe]
}

// CallsPlugins reports whether the suite measures calls of CNI plugins, not traffic.
func (s Suite) CallsPlugins() bool { return len(s.Paths) > 0 && s.Paths[0].Plugin != nil }

func newSuite(question string, workloads ...Workload) Suite {
	return Suite{Workloads: workloads, Report: result.Suite{Question: question}}
}

func (s *Suite) add(p Path, than ...string) {
	s.Paths = append(s.Paths, p)
	for _, id := range than {
		s.compare(p.ID, id)
	}
}

func (s *Suite) addBaseline(p Path) {
	s.add(p)
	s.repeat(p)
}

func (s *Suite) repeat(p Path) {
	again := p
	again.ID, again.Variant, again.Repeats = p.ID+"/again", "again", p.ID
	again.Note = "the same as " + p.ID + ", measured again"
	s.add(again)
	s.Pairs = append(s.Pairs, Pair{"A/A: " + p.ID + " measured twice", again.ID, p.ID, true, ""})
}

func (s *Suite) ask(question, numerator, denominator string) {
	s.Pairs = append(s.Pairs, Pair{numerator + " / " + denominator, numerator, denominator, false, question})
}

func (s *Suite) compare(numerator, denominator string) { s.ask("", numerator, denominator) }

func (s *Suite) state(caption, numerator, denominator string) {
	s.compare(numerator, denominator)
	s.Report.Statements = append(s.Report.Statements, statement(caption, numerator, denominator))
}

func statement(caption, numerator, denominator string) result.Statement {
	return result.Statement{Caption: caption, Pairs: []result.Pair{pairOf(numerator, denominator, "")}}
}

func pairOf(numerator, denominator, label string) result.Pair {
	return result.Pair{Numerator: numerator, Denominator: denominator, Label: label}
}

func (s *Suite) path(id string) (Path, bool) {
	i := slices.IndexFunc(s.Paths, func(p Path) bool { return p.ID == id })
	if i < 0 {
		return Path{}, false
	}
	return s.Paths[i], true
}

const (
	wordKernel = "kernel"
	// UserSpace is the datapath of a switch that forwards in a process.
	UserSpace = "user-space"
)

// Variant returns the variant of a row: the variant of its path, then the datapath of Open vSwitch and the acceleration
// of VMs in its running lab, each empty without one.
func Variant(path, ovsDatapath, acceleration string) string {
	word := map[string]string{lab.OVSKernel: wordKernel, lab.OVSUserSpace: UserSpace}[ovsDatapath]
	return strings.Join(strings.Fields(path+" "+word+" "+acceleration), " ")
}

// Describe returns the description of the suite for a result file with these rows, which may include rows of other
// suites. Counted is true where instructions are counted. Notes explain words of the rows' variants.
func (s Suite) Describe(rows []result.Row, counted bool) result.Suite {
	d := s.Report
	d.Name, d.Layout = s.Name, cmp.Or(d.Layout, result.LayoutList)
	if d.Question = cmp.Or(d.Question, s.Doc, s.Name); counted {
		d.Question += " Counted in instructions."
	}
	if len(d.Answer) == 0 {
		d.Answer = []string{result.AnswerFastest}
	}
	d.Notes = slices.Clone(d.Notes)
	for _, word := range [][2]string{
		{UserSpace, "Open vSwitch forwarded in user space, as the kernel lacks its datapath."},
		{vm.TCG, "(tcg): the pods are virtual machines with processors emulated in software."},
		{vm.KVM, "(kvm): the pods are virtual machines."},
	} {
		has := func(r result.Row) bool {
			return r.Suite == s.Name && slices.Contains(strings.Fields(r.Variant), word[0])
		}
		if slices.ContainsFunc(rows, has) {
			d.Notes = append(d.Notes, word[1])
		}
	}
	return d
}

// Label returns the display name of a row with a complete variant, "" for the usual one.
func (s Suite) Label(row result.Row) string {
	if s.Report.Layout != result.LayoutMatrix {
		for _, word := range strings.Fields(row.Variant) {
			if word == vm.KVM || word == vm.TCG {
				return fmt.Sprintf("%s (%s)", strings.TrimSuffix(row.ID, "/again"), word)
			}
		}
		return row.Label
	}
	if row.Variant != wordKernel && row.Variant != UserSpace {
		return row.Label
	}
	label := row.Link + " (" + row.Variant + ")"
	if row.Datapath == result.DatapathEBPF {
		label += "+eBPF"
	}
	return label
}

// Has reports whether the suite has a row of a path under a workload. An engine may not carry the workload, and a
// path may have one workload only.
func (s Suite) Has(p Path, w Workload) bool {
	return (p.Engine == nil || p.Engine.Runs(w.Name, w.Flows)) && (p.Workload == "" || p.Workload == w.Name) &&
		(!w.OfTables() || p.hasTable(w))
}

// Pair is a comparison of two paths of a suite.
type Pair struct {
	Name                   string // describes the comparison
	Numerator, Denominator string // IDs of paths
	AA                     bool   // both measure the same path
	Asks                   string // the question that the pair belongs to (see [result.Comparison]); empty for none
}

// Workload is a workload of a suite.
type Workload struct {
	Name  string       // one of [load.Workloads], or of the workloads of CNI plugins
	Flows int          // concurrent connections or calls, at least 1
	Rate  uint64       // of a UDP stream in bits per second; 0 is unlimited
	Setup result.Setup // how the workload is driven if not in the usual way
}

// String returns the workload's name, the number of flows if there are several, and its setup in parentheses.
func (w Workload) String() string {
	text := w.Name
	if w.Flows > 1 {
		text += fmt.Sprintf("-%d", w.Flows)
	}
	if setup := w.Setup.String(); setup != "" {
		text += " (" + setup + ")"
	}
	return text
}

// OfTables reports whether the workload measures a table of services or a network policy, not traffic.
func (w Workload) OfTables() bool {
	return slices.Contains(ServiceWorkloads(), w.Name) || w.ofPolicies()
}

func (w Workload) ofPolicies() bool { return slices.Contains(policyWorkloads, w.Name) }

// Spec returns the load of a workload on a path.
func (w Workload) Spec(p Path) load.Spec {
	return load.Spec{
		Workload: w.Name, Target: p.Connect, Flows: w.Flows, Rate: w.Rate, Request: w.Setup.RequestBytes,
		Response: w.Setup.ResponseBytes, Reverse: w.Setup.Reverse, Pace: w.Setup.Rate, LoadShare: w.Setup.LoadShare,
		Delay: p.Delay, Reset: p.Ends != nil,
	}
}

func tcpStreams(flows int) Workload { return Workload{Name: load.TCPStream, Flows: flows} }
func udpStreams(flows int) Workload { return Workload{Name: load.UDPStream, Flows: flows, Rate: 10e9} }
func tcpRR() Workload               { return Workload{Name: load.TCPRR, Flows: 1} }

func usualTCP(more ...string) []Workload {
	all := []Workload{tcpStreams(1), tcpRR()}
	for _, name := range append([]string{load.TCPCRR}, more...) {
		all = append(all, Workload{Name: name, Flows: 1})
	}
	return all
}

// Path is a path of a suite. It is measured with each of the suite's workloads.
type Path struct {
	evidence.Path
	ID string // unique in the suite
	// Variant, Overlay, Note, Label, Baseline and Repeats are copied to the path's rows; an empty Overlay means none.
	Variant, Overlay, Note, Label string
	Baseline                      bool
	Repeats                       string
	TwoCPUs                       bool             // runs the client on another CPU than the server
	Plugin                        *cnibench.Plugin // whose calls are measured instead of traffic
	// Extra leaves the path out unless a run selects it or has all rows: the usual rows answer the suite's question.
	Extra    bool
	Long     bool           // leaves the path out of quick runs
	Skip     string         // the reason why the path is measured nowhere
	Workload string         // the only workload of the path; empty for all
	Delay    time.Duration  // how long the server computes before each response
	Engine   *engine.Engine // nil for the native one
}

// Row returns the path's row for a workload, without samples.
func (p Path) Row(suite string, w Workload) result.Row {
	row := result.Row{
		Suite: suite, ID: p.ID, Link: p.Link, Variant: p.Variant, Datapath: p.Datapath(),
		Placement: result.PlacementSameHost, Overlay: cmp.Or(p.Overlay, result.OverlayNone), Target: p.Target, Via: p.Via,
		Family: "ipv4", Workload: w.Name, Setup: w.Setup, Engine: engine.Native, Note: p.Note,
		BigTCP: p.Lab.BigTCP, Label: p.Label, Baseline: p.Baseline, Repeats: p.Repeats,
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
	if p.Lab.Via != lab.ViaNone {
		row.Proxy = p.Lab.Via
	}
	switch {
	case p.Engine != nil:
		row.Engine = p.Engine.Name
	case p.Plugin != nil:
		row.Engine = "exec"
		if p.Plugin.HasServices() {
			row.Datapath = result.DatapathEBPF
		}
	}
	return row
}

// IsRow reports whether the path has an ID, or is the path that has it once more: its repetition, or by another engine.
func (p Path) IsRow(id string) bool {
	return p.ID == id || p.Repeats == id || p.Engine != nil && p.ID == id+"/"+p.Engine.Name
}

// Probe returns the reason why this machine cannot build the path's network, nil if it can. It needs root.
func (p Path) Probe() error {
	if p.Skip != "" {
		return errors.New(p.Skip)
	}
	if err := p.Lab.Probe(); err != nil {
		return err
	}
	if mode, err := p.mode(); err == nil {
		if err := mode.Probe(); err != nil {
			return err
		}
	}
	return p.CheckInstalled()
}

// CheckInstalled returns a [*distro.MissingError] if a program that the path needs is not installed.
func (p Path) CheckInstalled() error {
	if err := p.Lab.CheckInstalled(); err != nil {
		return err
	}
	switch {
	case p.Plugin != nil:
		return p.Plugin.Probe()
	case p.Engine == nil:
		return nil
	case p.Lab.Guests || p.Lab.Topology == lab.TopologyDocker && (p.Client != lab.HostA || p.Server != lab.HostA):
		return errNotInGuests
	}
	return cmp.Or(p.Engine.Probe(), p.Engine.Reaches(p.Path))
}

// errNotInGuests is the reason why a path through containers and guests has native rows only.
var errNotInGuests = errors.New(
	"other engines than the native one run in network namespaces only, not in containers and virtual machines")

// HasMode reports whether the path has a link mode, which the kernel may lack.
func (p Path) HasMode() bool {
	_, err := p.mode()
	return err == nil
}

// mode returns the link mode of the path's pods; hosts and containers have none.
func (p Path) mode() (podlink.Mode, error) {
	if p.Plugin != nil {
		return podlink.Lookup(p.Link)
	}
	return podlink.Lookup(p.Lab.Link)
}

func (p Path) connectTo(server netip.Addr) Path {
	p.Listen = netip.AddrPortFrom(server, lab.PlainPort)
	p.Connect = p.Listen
	return p
}

func (p Path) publishedAt(addr netip.Addr) Path {
	p.Target = result.TargetPublishedPort
	p.Listen = netip.AddrPortFrom(p.Listen.Addr(), lab.ServicePort)
	p.Connect = netip.AddrPortFrom(addr, lab.PublishedPort)
	return p
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // the IPv4 loopback address
