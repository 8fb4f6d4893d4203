// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/report/format"

	"mustang/internal/result"
)

// forest draws what the verdict says: the ratios of the rows that may win, the best first, or of the suite's stated pairs. Rows
// that are several times slower than the others have a panel of their own, the second chart.
func (t *workloadTable) forest() []Chart {
	c := Chart{Shape: ShapeForest, Log: true}
	if t.suite.statesPairs() || t.suite.Answer[0] == result.AnswerTally {
		t.addPairs(&c)
	} else {
		t.addRanked(&c)
	}
	if len(c.Marks) == 0 {
		return nil
	}
	c.Band = t.band()
	return c.Panels(t.wording.less || t.inTime())
}

// forestLegend says how the pictures of verdicts are read.
func (st *suiteTables) forestLegend(workloads []Workload) string {
	some, cut := false, false
	for _, w := range workloads {
		for _, c := range w.Forest {
			some, cut = true, cut || c.Cut()
		}
	}
	if !some {
		return ""
	}
	out := map[bool]string{true: "Further left is better. ", false: "Further right is better. "}[st.workloads[0].wording.less || st.workloads[0].inTime()]
	out += "Lines are 95\u00a0% intervals; a hollow mark: no difference was found. Band: the difference between two measurements of one path."
	if cut {
		out += cutOff
	}
	return out
}

// addRanked adds the ratio of each contender, and of the reference, to the reference: the suite's, or the best row.
func (t *workloadTable) addRanked(c *Chart) {
	rows := t.ranked(t.measured())
	if t.suite.grid() {
		rows = t.contenders()
	}
	if len(rows) < 2 {
		return
	}
	base := rows[0]
	if t.reference != nil && t.reference.ok() && slices.Contains(rows, t.reference) {
		base = t.reference
	}
	of, more := " of that of ", "right"
	c.Title = t.name + ": ratio to " + base.name
	switch {
	case t.inTime():
		of, more = " of the time of ", "left"
		c.Title = t.name + ": time, ratio to " + base.name
	case t.wording.less:
		more = "left"
	}
	unit := map[bool]string{true: "µs", false: t.unit}[t.inTime()]
	c.Caption = fmt.Sprintf("1 is %s, %s; further %s is better. Columns: ratio, %s.", base.name, t.figure(base), more, unit)
	for _, e := range rows {
		m := t.mark(e, 1, "1")
		m.Group, m.Label, m.Low, m.High = "", e.named(), 1, 1
		m.Tip, m.Figure = t.tip(e), format.Number(e.Median, format.Own(e.Median, t.places()))
		if t.inTime() {
			m.Figure = format.Number(t.meanLatency(e), format.FewDecimals(t.meanLatency(e)))
		}
		if e != base {
			d := t.difference(e, base)
			if t.inTime() {
				d = d.turned()
			}
			if d.ratio <= 0 {
				continue
			}
			setRatio(&m, d)
			m.Tip += "; " + ratioWords(d) + of + base.name + "; " + t.wording.describe(d.verdict, d.ratio)
			if t.inTime() {
				m.Tip = t.tip(e) + "; " + ratioWords(d) + of + base.name
			}
		}
		m.Tip += "; " + format.Count(len(e.Samples), "sample") + "."
		c.Marks = append(c.Marks, m)
	}
	slices.SortStableFunc(c.Marks, func(a, b Mark) int {
		if t.wording.less || t.inTime() {
			return cmp.Compare(a.Value, b.Value)
		}
		return cmp.Compare(b.Value, a.Value)
	})
	c.Legend = t.legend(rows)
}

// addPairs adds the ratio of each pair that the suite states, or tallies.
func (t *workloadTable) addPairs(c *Chart) {
	var subjects []string
	var rows []*entry
	for _, st := range t.suite.Statements {
		if st.Tally != (t.suite.Answer[0] == result.AnswerTally) && slices.ContainsFunc(t.suite.Statements, func(s result.Statement) bool { return s.Tally }) {
			continue
		}
		subjects = append(subjects, format.Clean(st.Caption))
		for _, p := range st.Pairs {
			a, b := t.byID[p.Numerator], t.byID[p.Denominator]
			if a == nil || b == nil || !a.ok() || !b.ok() {
				continue
			}
			d := t.difference(a, b)
			if d.ratio <= 0 {
				continue
			}
			m := t.mark(a, d.ratio, "")
			m.Group, m.Label = format.Clean(st.Caption), format.Spelt(format.Clean(p.Label))
			if m.Label == "" {
				m.Label = a.name
			}
			setRatio(&m, d)
			m.Tip = fmt.Sprintf("%s / %s: %s, %s over %s; %s; %s.", a.name, b.name, ratioWords(d), t.figure(a), t.figure(b),
				t.wording.describe(d.verdict, d.ratio), format.Count(min(len(a.Samples), len(b.Samples)), "sample"))
			c.Marks, rows = append(c.Marks, m), append(rows, a)
		}
	}
	c.Title, c.Legend = t.name+": "+strings.Join(subjects, "; "), t.legend(rows)
	if len(subjects) != 1 {
		c.Title = t.name + ": ratios of the pairs"
	}
	c.Caption = "At 1 both of a pair are alike; right of it the first is better."
	if t.wording.less {
		c.Caption = "At 1 both of a pair are alike; left of it the first is better."
	}
}

// setRatio gives a mark its ratio.
func setRatio(m *Mark, d difference) {
	m.Value, m.Low, m.High = d.ratio, d.ratio, d.ratio
	if d.ci != nil && d.ci[0] > 0 {
		m.Low, m.High = d.ci[0], d.ci[1]
	}
	m.Hollow = d.verdict != lower && d.verdict != higher
	m.Text = strings.TrimSpace(format.ShortRatio(d.ratio, ratioPlaces(d)) + " " + d.verdict.mark())
}

// ratioWords prints a ratio with its interval.
func ratioWords(d difference) string {
	places := ratioPlaces(d)
	text := format.ShortRatio(d.ratio, places)
	if d.ci != nil {
		text += " (95\u00a0% interval " + format.ShortRatio(d.ci[0], places) + " to " + format.ShortRatio(d.ci[1], places) + ")"
	}
	return text
}

// tip tells a row's figure with its interval.
func (t *workloadTable) tip(e *entry) string {
	text := e.name + ": " + t.figure(e)
	if e.CI95 != nil {
		text += " (95\u00a0% interval " + format.Interval(e.CI95, format.Decimals(e.Median)) + ")"
	}
	return text
}

// distribution draws the samples of each row.
func (t *workloadTable) distribution() Figure {
	c := Chart{Shape: ShapeStrip, Title: t.name + ", " + t.unit + ", all samples", Legend: t.legend(t.measured()),
		Caption: "Ticks are samples; where there are many, the shape is as high as samples are dense. The upright line is the median. " +
			map[bool]string{true: "Left is better.", false: "Right is better."}[t.wording.less]}
	if t.turns() {
		c.Caption += " The figure is the mean of the networks' medians."
	}
	places := t.places()
	for _, e := range t.measured() {
		m := t.mark(e, e.Median, format.Number(e.Median, format.Own(e.Median, places)))
		m.Tip = t.tip(e) + "; " + format.Count(len(e.Samples), "sample") + "."
		m.Samples = e.Samples
		if e.CI95 != nil {
			m.Low, m.High = e.CI95[0], e.CI95[1]
		}
		c.Marks = append(c.Marks, m)
	}
	return c.LowApart()
}

// mostCurves bounds the lines that one chart has.
const mostCurves = 12

// latencyCurve draws the percentiles of the latency of the rows that may win.
func (t *workloadTable) latencyCurve() Chart {
	c := Chart{
		Shape: ShapeCurve, Log: true, Title: t.name + ": latency, " + t.latencyUnit(),
		Caption: "How many " + t.events() + " took less than how long: p50 is half of them, p99.9 is 999 of 1,000. Lower is better.",
	}
	rows := slices.DeleteFunc(t.ranked(t.measured()), func(e *entry) bool {
		return e.LatencyUS == nil || e.LatencyUS.P50 < leastLatency || !t.suite.list() && !e.contends()
	})
	if len(rows) > mostCurves {
		c.Caption += fmt.Sprintf(" The first %d rows.", mostCurves)
		rows = rows[:mostCurves]
	}
	for _, e := range rows {
		m := t.mark(e, t.latency(e.LatencyUS.P50), "")
		m.Group, m.Label = "", e.name
		var words []string
		for i, v := range []float64{e.LatencyUS.P50, e.LatencyUS.P90, e.LatencyUS.P99, e.LatencyUS.P999} {
			v = t.latency(v)
			m.Samples = append(m.Samples, v)
			words = append(words, []string{"p50", "p90", "p99", "p99.9"}[i]+" "+format.Number(v, format.FewDecimals(v)))
		}
		m.Tip = e.name + ": " + strings.Join(words, ", ") + " " + t.latencyUnit() + "."
		c.Marks = append(c.Marks, m)
	}
	return c
}
