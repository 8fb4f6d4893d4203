// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/vm"
)

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
