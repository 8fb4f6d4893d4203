// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"cmp"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/vm"
)

// Words of a row's variant that name the datapath of Open vSwitch.
const (
	wordKernel = "kernel"
	// UserSpace is that of a switch that forwards in a process.
	UserSpace = "user-space"
)

// Variant returns the variant of a row: that of its path, followed by properties of its
// lab, which are known once it is up: the datapath of Open vSwitch (see
// [lab.Lab.OVSDatapath]) and the acceleration of VMs ([lab.Lab.Acceleration]), each
// empty if there is none.
func Variant(path, ovsDatapath, acceleration string) string {
	switch ovsDatapath {
	case lab.OVSKernel:
		ovsDatapath = wordKernel
	case lab.OVSUserSpace:
		ovsDatapath = UserSpace
	}
	words := slices.DeleteFunc([]string{path, ovsDatapath, acceleration}, func(word string) bool { return word == "" })
	return strings.Join(words, " ")
}

// Describe returns the description of the suite for a result file with these rows,
// which may include those of other suites. Counted is true where instructions are
// counted.
func (s Suite) Describe(rows []result.Row, counted bool) result.Suite {
	d := s.Report
	d.Name, d.Question = s.Name, cmp.Or(d.Question, s.Doc, s.Name)
	d.Layout = cmp.Or(d.Layout, result.LayoutList)
	if counted {
		d.Question = cmp.Or(s.CountedQuestion, d.Question)
	}
	if len(d.Answer) == 0 {
		d.Answer = []string{result.AnswerFastest}
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return r.Suite != s.Name })
	if s.adapt != nil {
		s.adapt(&d, rows)
	}
	d.Notes = append(slices.Clone(d.Notes), guestNotes(rows)...)
	return d
}

// Label returns the display name of a row whose variant is known, "" for the usual one.
func (s Suite) Label(row result.Row) string {
	matrix := s.Report.Layout == result.LayoutMatrix
	switch mark := acceleration(row.Variant); {
	case !matrix && mark != "":
		return strings.TrimSuffix(row.ID, "/again") + mark
	case matrix && (row.Variant == wordKernel || row.Variant == UserSpace):
		label := row.Link + " (" + row.Variant + ")"
		if row.Datapath == result.DatapathEBPF {
			label += "+eBPF"
		}
		return label
	}
	return row.Label
}

// acceleration returns the acceleration of the VMs of a variant, in parentheses after a
// space, and "" without VMs.
func acceleration(variant string) string {
	for _, word := range strings.Fields(variant) {
		if word == vm.KVM || word == vm.TCG {
			return " (" + word + ")"
		}
	}
	return ""
}

func accelerationOf(rows []result.Row, id string) string {
	for _, row := range rows {
		if mark := acceleration(row.Variant); row.ID == id && mark != "" {
			return mark
		}
	}
	return ""
}

// guestNotes explains the acceleration of VMs.
func guestNotes(rows []result.Row) []string {
	seen := map[string]bool{}
	for _, row := range rows {
		seen[acceleration(row.Variant)] = true
	}
	var notes []string
	if seen[" ("+vm.TCG+")"] {
		notes = append(notes, "(tcg): the pods are virtual machines with processors emulated in software.")
	}
	if seen[" ("+vm.KVM+")"] {
		notes = append(notes, "(kvm): the pods are virtual machines.")
	}
	return notes
}

func statement(caption, numerator, denominator string) result.Statement {
	return result.Statement{Caption: caption, Pairs: []result.Pair{{Numerator: numerator, Denominator: denominator}}}
}
