// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/result"
)

// costs makes a table of the CPU time of the rows by its kind, and of their BPF programs; nil
// if no row has them apart.
func (t *workloadTable) costs() *Table {
	var shown []*entry
	bpf := false
	for _, e := range t.entries {
		if e.ok() && e.CPUSplit != nil {
			shown = append(shown, e)
			bpf = bpf || len(e.BPFNanos) > 0
		}
	}
	if len(shown) == 0 {
		return nil
	}
	only := t.of(shown)
	part := func(name string, value func(*result.CPUSplit) float64) Column {
		return only.figures(0, func(e *entry) float64 { return value(e.CPUSplit) }, name)
	}
	columns := []Column{
		only.texts(0, func(e *entry) string { return clean(e.ID) }, "row"),
		only.figures(0, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs per "+shortUnit(t.cpuUnit)),
		part("user", func(s *result.CPUSplit) float64 { return s.UserUS }),
		part("system", func(s *result.CPUSplit) float64 { return s.SystemUS }),
		part("softirq", func(s *result.CPUSplit) float64 { return s.SoftirqUS }),
	}
	for i := range columns[1:] {
		columns[1+i].Right = true
	}
	out := Table{ID: t.anchor + "-cpu", Title: "CPU time, " + LowerFirst(t.name), Notes: []string{
		"CPU time counts the whole machine. The kernel counts its parts in ticks, and hardware interrupts apart, so that they add up only about.",
	}}
	if bpf {
		columns = append(columns, only.texts(0, func(e *entry) string { return e.programTimes(t.cpuUnit) }, "eBPF programs"))
		out.Notes = append(out.Notes, "The time of an eBPF program is measured in a short run of its own, less the time of an empty program.")
	}
	out.Columns = withoutEmpty(columns)
	for i, e := range shown {
		out.Lines = append(out.Lines, Line{Status: e.Status, Color: t.kindOf(e).Color, First: i == 0 || shown[i-1].name != e.name})
	}
	return &out
}

// programTimes lists the runs of the entry's BPF programs and the time of each.
func (e *entry) programTimes(unit string) string {
	var out []string
	for _, p := range e.BPFNanos {
		out = append(out, fmt.Sprintf("%s %s\u00a0ns, %s per %s", clean(p.Program), Number(p.NanosPerRun, fewDecimals(p.NanosPerRun)),
			Number(p.RunsPerUnit, fewDecimals(p.RunsPerUnit)), shortUnit(unit)))
	}
	if len(out) == 0 {
		return None
	}
	return strings.Join(out, "; ")
}
