// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// ChartGroup is charts under a title.
type ChartGroup struct {
	ID, Title, Text string
	Charts          []Chart
}

// Values of [Chart.Shape].
const (
	ShapeBar      = "bar"      // bars from zero
	ShapeRatio    = "ratio"    // points around a line at one
	ShapeDumbbell = "dumbbell" // a dot at Value and a ring at High
)

// Chart is a chart with a horizontal axis and a mark for each row.
type Chart struct {
	Title, Caption string
	Shape          string
	// Log asks for a logarithmic axis.
	Log bool
	// Band is half the width of the band around one; 0 for none.
	Band   float64
	Marks  []Mark
	Legend []Legend
}

// Mark is a row of a chart.
type Mark struct {
	// Group is the caption above the first of its marks; empty for none.
	Group string
	Label string
	Color string
	Value float64
	// Low and High are the ends of the whisker, equal if there is none.
	Low, High float64
	// Text is the figure beside the mark.
	Text string
}

// Legend is a series of a chart.
type Legend struct{ Color, Name string }

// charts makes a suite's charts, without empty ones.
func (st *suiteTables) charts() []ChartGroup {
	calls := slices.ContainsFunc(st.workloads, (*workloadTable).calls)
	rates := ChartGroup{ID: "rates", Title: "Rates and latency"}
	costs := ChartGroup{ID: "costs", Title: "Cost of a cluster IP"}
	cpu := ChartGroup{ID: "cpu", Title: "CPU time per unit", Text: "Busy time of the whole machine, with any other work on it."}
	if st.counted {
		rates.Title = "Instructions"
	}
	if calls {
		rates.Title = "Times of calls"
		cpu.Text = "Busy time of the whole machine during the calls, with the kernel's work that follows them."
	}
	if st.list() {
		costs.Title = format.Clean(st.ReferenceChart)
	}
	for _, t := range st.workloads {
		rates.Charts = append(rates.Charts, t.rateChart())
		costs.Charts = append(costs.Charts, t.ratioChart())
		cpu.Charts = append(cpu.Charts, t.cpuChart())
	}
	for _, t := range st.workloads {
		rates.Charts = append(rates.Charts, t.latencyChart())
	}
	var out []ChartGroup
	for _, g := range []ChartGroup{rates, costs, cpu} {
		g.Charts = slices.DeleteFunc(g.Charts, Chart.empty)
		if len(g.Charts) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// empty reports whether a chart has nothing to show: no mark, or none above zero.
func (c Chart) empty() bool {
	return !slices.ContainsFunc(c.Marks, func(m Mark) bool { return c.Shape == ShapeRatio || max(m.Value, m.High) > 0 })
}

// mark starts the mark of an entry.
func (t *workloadTable) mark(e *entry, value float64, text string) Mark {
	return Mark{Group: t.group(e), Label: t.label(e), Color: t.kindOf(e).Color, Value: value, Low: value, High: value, Text: text}
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
	if e.Via == result.ViaNone {
		return targetName(e.Target)
	}
	return targetName(e.Target) + ", " + viaName(e.Via)
}

// rateChart shows figures as bars with their intervals.
func (t *workloadTable) rateChart() Chart {
	c := Chart{Shape: ShapeBar, Title: t.name + ", " + t.unit, Caption: "Median of all rounds. " + t.wording.direction, Legend: t.legend(t.measured())}
	if t.turns() {
		c.Caption = "Mean of the networks' medians. " + t.wording.direction
	}
	places := t.places()
	intervals := false
	for _, e := range t.measured() {
		m := t.mark(e, e.Median, format.Number(e.Median, format.Own(e.Median, places)))
		if e.CI95 != nil {
			m.Low, m.High = e.CI95[0], e.CI95[1]
			intervals = true
		}
		c.Marks = append(c.Marks, m)
	}
	if intervals {
		c.Caption += " Whiskers are 95\u00a0% intervals."
	} else {
		c.Caption += " Too few rounds for intervals."
	}
	return c
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
		c.Marks = append(c.Marks, t.mark(e, e.CPUUSPerUnit, format.Number(e.CPUUSPerUnit, format.Own(e.CPUUSPerUnit, format.FewDecimals(all...)))))
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

// latencyChart shows the median and the 99th percentile of the latency.
func (t *workloadTable) latencyChart() Chart {
	c := Chart{
		Shape: ShapeDumbbell, Title: t.name + ": latency, " + t.latencyUnit(),
		Caption: "Dot: half of all " + t.events() + " took less (p50). Ring: 99 of 100 took less (p99). Left is better.",
	}
	shown := slices.DeleteFunc(t.measured(), func(e *entry) bool { return e.LatencyUS == nil || e.LatencyUS.P50 < leastLatency })
	var all []float64
	least, most := math.Inf(1), 0.0
	for _, e := range shown {
		all = append(all, t.latency(e.LatencyUS.P99))
		least, most = min(least, e.LatencyUS.P50), max(most, e.LatencyUS.P99)
	}
	places := format.FewDecimals(all...)
	for _, e := range shown {
		p50, p99 := t.latency(e.LatencyUS.P50), t.latency(e.LatencyUS.P99)
		m := t.mark(e, p50, format.Number(p50, places)+" / "+format.Number(p99, places))
		m.High = p99
		c.Marks = append(c.Marks, m)
	}
	if c.Log = most > wideRange*least; c.Log {
		c.Caption += " The scale is logarithmic."
	}
	c.Legend = t.legend(shown)
	return c
}

// farAway is the multiple of the largest ratio at which a chart cuts intervals off.
const farAway = 2

// ratioChart shows cluster IP over pod IP, or each row over the reference if the
// suite has such a chart.
func (t *workloadTable) ratioChart() Chart {
	c := Chart{Shape: ShapeRatio, Band: min(t.quietest().share, 1)}
	var shown []*entry
	var differences []difference
	largest := 1.0
	for _, e := range t.measured() {
		d, ok := t.toReference(e)
		if !t.suite.list() {
			if ok = e.cost != nil; ok {
				d = t.of(*e.cost)
			}
		}
		if ok {
			shown, differences = append(shown, e), append(differences, d)
			largest = max(largest, d.ratio)
		}
	}
	if t.suite.list() && t.suite.ReferenceChart == "" || len(shown) == 0 {
		return Chart{}
	}
	intervals, cut := false, false
	for i, e := range shown {
		d := differences[i]
		m := t.mark(e, d.ratio, strings.TrimSpace(format.Ratio(d.ratio)+" "+d.verdict.mark()))
		if t.suite.list() {
			m.Group, m.Label = "", e.name
		}
		if d.ci != nil {
			intervals = true
			m.Low, m.High = d.ci[0], min(d.ci[1], farAway*largest)
			cut = cut || m.High < d.ci[1]
		}
		c.Marks = append(c.Marks, m)
	}
	c.Legend = t.legend(shown)
	t.captionRatios(&c, intervals, cut)
	return c
}

// captionRatios gives a chart of ratios its title and caption.
func (t *workloadTable) captionRatios(c *Chart, intervals, cut bool) {
	if t.suite.list() {
		c.Title = t.name + ": " + t.unit + " / " + t.reference.name
		c.Caption = "Ratio to " + t.reference.name + ", within each round."
	} else {
		c.Title = t.name + ": cluster IP / pod IP"
		c.Caption = "Ratio to the pod IP of the same connection, within each round. " + t.wording.atOne
	}
	one, _, _ := t.nouns()
	switch {
	case t.inTime():
		c.Title = t.name + ": time of a transaction / " + t.reference.name
		c.Caption += " 1.0 means no added time; right of it, a transaction takes longer."
	case t.calls():
		c.Caption += " Left of 1.0 the " + one + " is faster."
	}
	if intervals {
		c.Caption += " Whiskers are 95\u00a0% intervals."
	} else {
		c.Caption += " Too few rounds for intervals."
	}
	var texts []string
	for _, m := range c.Marks {
		texts = append(texts, m.Text)
	}
	if legend := marksLegend(t.turns(), texts...); legend != "" {
		c.Caption += " " + legend
	}
	if cut {
		c.Caption += " Intervals that reach far beyond the ratios are cut off; the tables have them."
	}
	if s := t.quietest(); s.pairs > 0 && s.share < tooWide {
		where := ""
		if classes := t.classes(); len(classes) > 1 {
			where = among(classes[0])
		}
		c.Caption += " The band (± " + format.Percent(s.share) + ") is the spread of the same thing measured twice" + where + " (A/A)."
	}
}

// kindOf returns the series of an entry: that of its suite, or the part of the kernel
// that handles its packets.
func (t *workloadTable) kindOf(e *entry) Legend {
	if series, ok := t.suite.seriesOf[e.ID]; ok {
		return series
	}
	switch {
	case e.Baseline && t.suite.list():
		return Legend{result.ColorGray, "host only"}
	case e.Baseline:
		return Legend{result.ColorGray, "baseline, no pod to pod"}
	case e.Via == result.ViaEBPFSocket:
		return Legend{result.ColorOlive, "cluster IP by eBPF at the socket"}
	case e.Datapath == result.DatapathEBPF, e.Via == result.ViaEBPFTC:
		return Legend{result.ColorTeal, "eBPF datapath"}
	case e.Via == result.ViaIPTables:
		return Legend{result.ColorOrange, "cluster IP by iptables"}
	case e.Via == result.ViaNFTables:
		return Legend{result.ColorPurple, "cluster IP by nftables"}
	case e.Via == result.ViaDocker:
		return Legend{result.ColorBlue, "published by Docker"}
	case t.suite.list():
		return Legend{result.ColorSlate, "kernel datapath"}
	}
	return Legend{result.ColorSlate, "kernel, pod IP"}
}

// legend lists the series of entries: the suite's in the file's order, then others by
// color.
func (t *workloadTable) legend(entries []*entry) []Legend {
	var order []Legend
	for _, series := range t.suite.Series {
		order = append(order, Legend{series.Color, format.Clean(series.Name)})
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
