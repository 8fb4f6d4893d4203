// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/report/format"

	"mustang/internal/result"
)

// ChartGroup is figures under a title.
type ChartGroup struct {
	ID, Title, Text string
	Long            bool // of as many rows as the suite has
	Figures         []Figure
}

// charts makes a suite's charts, without empty ones.
func (st *suiteTables) charts() []ChartGroup {
	calls := slices.ContainsFunc(st.workloads, (*workloadTable).calls)
	samples := ChartGroup{ID: "samples", Title: "Samples of each row", Long: true}
	latency := ChartGroup{ID: "percentiles", Title: "Latency"}
	cpu := ChartGroup{ID: "cpu", Title: "CPU time per unit", Long: true, Text: "Busy time of the whole machine, with any other work on it."}
	if calls {
		cpu.Text = "Busy time of the whole machine during the calls, with the kernel's work that follows them."
	}
	for _, t := range st.workloads {
		samples.Figures = append(samples.Figures, t.distribution())
		latency.Figures = append(latency.Figures, Figure{t.latencyCurve()})
		cpu.Figures = append(cpu.Figures, Figure{t.cpuChart()})
	}
	var out []ChartGroup
	for _, g := range []ChartGroup{latency, samples, cpu} {
		g.Figures = slices.DeleteFunc(g.Figures, func(f Figure) bool { return len(f) == 0 || f[0].Empty() })
		if len(g.Figures) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// mark starts the mark of an entry.
func (t *workloadTable) mark(e *entry, value float64, text string) Mark {
	return Mark{Group: t.group(e), Label: t.label(e), Color: t.kindOf(e).Color, Value: value, Low: value, High: value, Text: text, Path: t.suite.tracedAs(e.ID)}
}

// group is the caption that an entry stands below in a chart: its connection, or its
// group in the suite.
func (t *workloadTable) group(e *entry) string {
	if !t.suite.list() {
		return e.name
	}
	return t.suite.groupOf[e.ID]
}

// label names an entry in its group, without the part of the ID that the group's
// caption stands for.
func (t *workloadTable) label(e *entry) string {
	if t.suite.grid() && t.group(e) != "" {
		return t.kindOf(e).Name
	}
	if t.suite.list() {
		if first, rest, ok := strings.Cut(e.name, "/"); ok && t.group(e) != "" {
			return map[bool]string{true: first, false: rest}[strings.ReplaceAll(rest, "-", " ") == t.group(e)]
		}
		return e.name
	}
	if via := e.via(); via != format.Via(result.ViaNone) {
		return format.Target(e.Target) + ", " + strings.TrimSuffix(strings.TrimPrefix(via, "none ("), ")")
	}
	return format.Target(e.Target)
}

// cpuChart shows the CPU time per unit.
func (t *workloadTable) cpuChart() Chart {
	c := Chart{
		Shape: ShapeBar, Title: t.name + ": CPU time, µs per " + t.cpuUnit,
		Caption: "Shorter is better.",
	}
	shown := slices.DeleteFunc(t.measured(), func(e *entry) bool { return e.CPUUSPerUnit <= 0 })
	var all []float64
	for _, e := range shown {
		all = append(all, e.CPUUSPerUnit)
	}
	if len(all) > 0 && slices.Max(all) > wideRange*slices.Min(all) { // user space beside the kernel
		c.Log, c.Caption = true, "Left is better. The scale is logarithmic."
		all = nil // each figure has digits of its own
	}
	for _, e := range shown {
		m := t.mark(e, e.CPUUSPerUnit, format.Number(e.CPUUSPerUnit, format.Own(e.CPUUSPerUnit, format.FewDecimals(all...))))
		m.Tip = fmt.Sprintf("%s: %s µs of CPU time per %s; %s.", e.name, m.Text, t.cpuUnit, format.Count(len(e.Samples), "sample"))
		c.Marks = append(c.Marks, m)
	}
	c.Legend = t.legend(shown)
	return c
}

// leastLatency is the least latency in a chart, in microseconds: no clock measures
// less, and a logarithmic axis has no zero.
const leastLatency = 1e-6

// wideRange is the ratio of the largest to the smallest latency or CPU time from which
// on the axis is logarithmic.
const wideRange = 20

// kindOf returns the series of an entry: that of its suite, or the part of the kernel
// that handles its packets.
func (t *workloadTable) kindOf(e *entry) Legend {
	if series, ok := t.suite.seriesOf[e.ID]; ok {
		return series
	}
	switch {
	case e.Baseline && t.suite.list():
		return Legend{Color: result.ColorGray, Name: "host only"}
	case e.Baseline:
		return Legend{Color: result.ColorGray, Name: "baseline, no pod to pod"}
	case e.Via == result.ViaEBPFSocket:
		return Legend{Color: result.ColorOlive, Name: "eBPF at the socket"}
	case e.Datapath == result.DatapathEBPF, e.Via == result.ViaEBPFTC:
		return Legend{Color: result.ColorTeal, Name: "eBPF datapath"}
	case e.proxy() == result.ViaIPTables:
		return Legend{Color: result.ColorOrange, Name: "kube-proxy with iptables"}
	case e.proxy() == result.ViaNFTables:
		return Legend{Color: result.ColorPurple, Name: "kube-proxy with nftables"}
	case e.Via == result.ViaDocker:
		return Legend{Color: result.ColorBlue, Name: "published by Docker"}
	case t.suite.list():
		return Legend{Color: result.ColorSlate, Name: "kernel datapath"}
	}
	return Legend{Color: result.ColorSlate, Name: "kernel, pod IP"}
}

// legend lists the series of entries: the suite's in the file's order, then others by
// color.
func (t *workloadTable) legend(entries []*entry) []Legend {
	var order []Legend
	for _, series := range t.suite.Series {
		order = append(order, Legend{Color: series.Color, Name: format.Clean(series.Name)})
	}
	colors := []string{result.ColorGray, result.ColorSlate, result.ColorOrange, result.ColorPurple, result.ColorBlue, result.ColorTeal, result.ColorOlive}
	place := func(k Legend) int {
		if i := slices.Index(order, k); i >= 0 {
			return i
		}
		return len(order) + slices.Index(colors, k.Color)
	}
	var out []Legend
	for _, e := range entries {
		if k := t.kindOf(e); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	slices.SortStableFunc(out, func(a, b Legend) int { return place(a) - place(b) })
	return out
}
