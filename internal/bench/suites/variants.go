// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/bench/engine"
	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/vm"
)

func ipv6() Suite {
	s := newSuite("What does IPv6 cost between the pods of one host, and a cluster IP of it?", usualTCP()...)
	s.Report.Layout, s.Report.Answer = result.LayoutMatrix, []string{result.AnswerStatements, result.AnswerFastest}
	against := result.Statement{Caption: "IPv6 against IPv4", Subject: "by IPv6", Object: "by IPv4"}
	links := []string{"veth", "bridge-call-off", "macvlan", "ipvlan-l2", "netkit"}
	targets := []string{"pod-ip", "pod-ip/iptables", "cluster-ip/iptables", "cluster-ip"}
	four := podLinks()
	for _, p := range four.Paths {
		link, rest, _ := strings.Cut(p.ID, "/")
		if !slices.Contains(links, strings.TrimSuffix(link, "+ebpf")) || !slices.Contains(targets, rest) {
			continue
		}
		six := p
		six.ID = byIPv6(p.ID)
		six.Listen = netip.AddrPortFrom(lab.PodAIPs[1], p.Listen.Port())
		six.Connect = six.Listen
		if p.Target == result.TargetClusterIP {
			six.Connect = lab.Services()[1].Frontend
		}
		if rest == "pod-ip" {
			s.add(p)
			s.compare(six.ID, p.ID)
			against.Pairs = append(against.Pairs, pairOf(six.ID, p.ID, link))
		}
		s.add(six)
		if p.ID == "veth/pod-ip" {
			s.repeat(six)
		}
	}
	for _, p := range four.Pairs { // the questions on the same paths by IPv4
		_, numerator := s.path(byIPv6(p.Numerator))
		_, denominator := s.path(byIPv6(p.Denominator))
		if p.Asks != "" && numerator && denominator {
			s.ask(p.Asks, byIPv6(p.Numerator), byIPv6(p.Denominator))
		}
	}
	s.Report.Statements = []result.Statement{against}
	return s
}

func byIPv6(id string) string {
	link, rest, _ := strings.Cut(id, "/")
	return link + "/ipv6/" + rest
}

func twoCPUs() Suite {
	s := newSuite("What changes if client and server run on two CPUs?", usualTCP()...)
	s.Report.Answer, s.Report.Variants = []string{result.AnswerStatements}, true
	against := result.Statement{Caption: "Two CPUs against one", Subject: "on two CPUs", Object: "on one"}
	ids := []string{"loopback", "veth/pod-ip", "bridge-call-off/pod-ip", "macvlan/pod-ip", "veth+ebpf/pod-ip",
		"veth+ebpf/cluster-ip", "veth/cluster-ip/" + lab.ViaNFTables}
	for _, p := range podLinks().Paths {
		if !slices.Contains(ids, p.ID) {
			continue
		}
		p.Label, p.Baseline, p.Note = p.ID, false, ""
		two := p
		two.ID, two.Label, two.TwoCPUs, two.Variant = p.ID+"@2cpus", p.ID+"@2cpus", true, "two CPUs"
		s.add(p)
		s.add(two, p.ID)
		against.Pairs = append(against.Pairs, pairOf(two.ID, p.ID, p.ID))
		if p.ID == "veth/pod-ip" {
			s.repeat(p)
			s.repeat(two)
			continue
		}
		s.compare(two.ID, "veth/pod-ip@2cpus")
	}
	s.Report.Statements = []result.Statement{against}
	return s
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

// Beside returns suites in which each path is followed by itself under each engine, with comparisons to the path.
// The workloads are the workloads that an engine carries. Suites without such a workload are left out. Beside
// returns an error if no suite remains.
func Beside(all []Suite, engines []engine.Engine) ([]Suite, error) {
	var out []Suite
	var names []string
	for _, e := range engines {
		names = append(names, e.Name)
	}
	list := strings.Join(names, ", ")
	for _, s := range all {
		if s = s.beside(engines); len(s.Workloads) > 0 {
			s.Report.Question = "Do the native engine and " + list + " agree?"
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: cannot run any workload of suite %s", list, all[0].Name)
	}
	return out, nil
}

func (s Suite) beside(engines []engine.Engine) Suite {
	out := Suite{Name: s.Name, Doc: s.Doc, Report: result.Suite{Answer: []string{result.AnswerStatements}}}
	for _, w := range s.Workloads {
		carries := func(e engine.Engine) bool { return e.Runs(w.Name, w.Flows) }
		if !s.CallsPlugins() && slices.ContainsFunc(engines, carries) {
			out.Workloads = append(out.Workloads, w)
		}
	}
	against := make([]result.Statement, len(engines))
	for i, e := range engines {
		against[i] = result.Statement{Caption: e.Name + " against native", Subject: "by " + e.Name,
			Object: "by the native engine"}
	}
	for _, p := range s.Paths {
		if p.Repeats != "" {
			continue
		}
		out.add(p)
		for i, e := range engines {
			by := p
			by.ID, by.Label, by.Engine = p.ID+"/"+e.Name, p.ID+"/"+e.Name, &e
			out.add(by)
			out.Pairs = append(out.Pairs, Pair{Name: p.ID + ": " + e.Name + " / native", Numerator: by.ID, Denominator: p.ID})
			against[i].Pairs = append(against[i].Pairs, pairOf(by.ID, p.ID, p.ID))
		}
	}
	out.Report.Statements = against
	return out
}

// BesideEngines reports whether paths are measured by further engines.
func (s Suite) BesideEngines() bool {
	return slices.ContainsFunc(s.Paths, func(p Path) bool { return p.Engine != nil })
}

// Has reports whether the suite has a row of a path under a workload. An engine may not carry the workload, and a
// path may have one workload only.
func (s Suite) Has(p Path, w Workload) bool {
	return (p.Engine == nil || p.Engine.Runs(w.Name, w.Flows)) && (p.Workload == "" || p.Workload == w.Name) &&
		(!w.OfTables() || p.hasTable(w))
}
