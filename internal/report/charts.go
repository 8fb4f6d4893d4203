// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Figure is a chart, with a second one of the rows that need an axis of their own.
type Figure []Chart

// Chart shows ratios: a point with its interval for each row, on a logarithmic axis.
type Chart struct {
	Title, Caption string
	// Band is how far the band around 1 reaches, as a factor less 1; 0 for none.
	Band  float64
	Marks []Mark
}

// Mark is a row of a chart.
type Mark struct {
	// Group is the caption above the first of its marks; empty for none.
	Group string
	Label string
	Color string
	Value float64
	// Low and High are the ends of the interval, equal if there is none.
	Low, High float64
	// Hollow marks no difference.
	Hollow bool
	// Path is the place of the row's path among those of its suite, from 1 on; 0 if it was not traced.
	Path int
	// Text is the ratio beside the mark, Figure what it is a ratio of, at the right edge, and Tip all that is known of it.
	Text, Figure, Tip string
}

// Legend is a series of rows.
type Legend struct{ Color, Name string }

// chart draws the verdict: the ratios of the rows that may win, the best first, or of the suite's pairs.
func (t *workloadTable) chart() Figure {
	c := Chart{Title: upper(t.plural()), Band: t.band()}
	if t.suite.answersPairs() {
		c.Title += ": ratios of the pairs"
		for _, s := range t.suite.answered() {
			for _, p := range t.pairsOf(s) {
				c.Marks = append(c.Marks, t.mark(p.row, p.difference, [2]string{p.caption, p.label}))
			}
		}
		return c.panels()
	}
	base := t.base()
	if base == nil || len(t.contest) < 2 {
		return nil
	}
	rows := []*entry{base}
	for _, r := range t.contest {
		if r.entry != base {
			rows = append(rows, r.entry)
		}
	}
	c.Title += ": ratio to " + base.name + ", " + t.unit
	if t.inTime() {
		c.Title = upper(t.plural()) + ": time, ratio to " + base.name + ", µs"
	}
	for _, e := range rows {
		d := difference{ratio: 1, verdict: higher}
		if e != base {
			d = t.timed(t.difference(e, base))
		}
		if d.ratio > 0 {
			m := t.mark(e, d, [2]string{"", e.named()})
			m.Figure = short(e.figure)
			if t.inTime() {
				m.Figure = short(t.meanLatency(e))
			}
			c.Marks = append(c.Marks, m)
		}
	}
	slices.SortStableFunc(c.Marks, func(a, b Mark) int {
		if t.wording.less || t.inTime() {
			return cmp.Compare(a.Value, b.Value)
		}
		return cmp.Compare(b.Value, a.Value)
	})
	return c.panels()
}

// costChart draws both costs of each service proxy on each link, of all pod traffic and of a Service on top, or their
// total.
func (t *workloadTable) costChart() Figure {
	c := Chart{Title: upper(t.plural()) + ", ratio", Band: t.band()}
	for _, p := range t.suite.prices() {
		found, ok := t.priced[p]
		_, all := t.priced[costKey{p.link, p.proxy, result.AsksProxy}]
		_, service := t.priced[costKey{p.link, p.proxy, result.AsksService}]
		if !ok || p.question == result.AsksTotal && (all || service) {
			continue
		}
		names := [2]string{p.link, shortVia(p.proxy) + ", " + p.what()}
		c.Marks = append(c.Marks, t.mark(t.byID[found.Numerator], judge(found), names))
	}
	if len(c.Marks) == 0 {
		return nil
	}
	return Figure{c}
}

// mark is the mark of a row with its ratio, in a group under a label.
func (t *workloadTable) mark(e *entry, d difference, names [2]string) Mark {
	m := Mark{Group: names[0], Label: names[1], Color: t.kindOf(e).Color, Value: d.ratio, Low: d.ratio, High: d.ratio,
		Path:   t.suite.tracedAs(e.ID),
		Hollow: d.verdict == tied || d.verdict == tooFew, Text: shortRatio(d.ratio, d.places())}
	if d.ci != nil && d.ci[0] > 0 {
		m.Low, m.High = d.ci[0], d.ci[1]
	}
	m.Tip = fmt.Sprintf("%s: %s; ratio %s; %s.", strings.TrimPrefix(names[0]+", "+names[1], ", "), t.figureOf(e.figure),
		d.interval(), countOf(len(e.Samples), "sample"))
	return m
}

// slowRatio is the ratio from which on a row is in a panel of its own.
const slowRatio = 1.0 / 3

// panels splits a chart: rows far from 1 go to a second one. Where most rows are, they stay.
func (c Chart) panels() Figure {
	far := func(m Mark) bool { return m.Value < slowRatio || m.Value > 1/slowRatio }
	apart := slices.DeleteFunc(slices.Clone(c.Marks), func(m Mark) bool { return !far(m) })
	switch {
	case len(c.Marks) == 0:
		return nil
	case len(apart) == 0, 2*len(apart) > len(c.Marks):
		return Figure{c}
	}
	second := Chart{Marks: apart, Title: c.Title + ", far from 1", Caption: "Rows far from 1, on an axis of their own."}
	c.Marks = slices.DeleteFunc(slices.Clone(c.Marks), far)
	return Figure{c, second}
}

// chartLegend says how the charts are read; it is empty without a chart.
func (st *suiteTables) chartLegend(workloads []Workload) string {
	if !slices.ContainsFunc(workloads, func(w Workload) bool { return len(w.Forest)+len(w.Services) > 0 }) {
		return ""
	}
	better := map[bool]string{true: "Left is better.", false: "Right is better."}[st.workloads[0].wording.less ||
		st.workloads[0].inTime()]
	return better + " Hollow: no difference found. Line: 95\u00a0% interval, an arrow where it is cut off. Band: one " +
		"path measured twice."
}

// key lists the series of the suite's rows: those of the file in its order, then others by color.
func (st *suiteTables) key() []Legend {
	var out []Legend
	for _, t := range st.workloads {
		for _, e := range t.measured() {
			if k := t.kindOf(e); !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
	}
	colors := []string{result.ColorGray, result.ColorSlate, result.ColorOrange, result.ColorPurple, result.ColorBlue,
		result.ColorTeal, result.ColorOlive}
	place := func(k Legend) int {
		i := slices.IndexFunc(st.Series, func(s result.Series) bool { return s.Color == k.Color && clean(s.Name) == k.Name })
		if i < 0 {
			return len(st.Series) + slices.Index(colors, k.Color)
		}
		return i
	}
	slices.SortStableFunc(out, func(a, b Legend) int { return place(a) - place(b) })
	return out
}

// kindOf returns the series of an entry: that of its suite, or the part of the kernel
// that handles its packets.
func (t *workloadTable) kindOf(e *entry) Legend {
	if series, ok := t.suite.seriesOf[e.ID]; ok {
		return series
	}
	switch {
	case e.Baseline:
		return Legend{Color: result.ColorGray, Name: "baseline, no pod to pod"}
	case e.Via == result.ViaEBPFSocket:
		return Legend{Color: result.ColorOlive, Name: "eBPF at the socket"}
	case e.Datapath == result.DatapathEBPF, e.Via == result.ViaEBPFTC:
		return Legend{Color: result.ColorTeal, Name: "eBPF datapath"}
	case cmp.Or(e.Proxy, e.Via) == result.ViaIPTables:
		return Legend{Color: result.ColorOrange, Name: "kube-proxy with iptables (ipt)"}
	case cmp.Or(e.Proxy, e.Via) == result.ViaNFTables:
		return Legend{Color: result.ColorPurple, Name: "kube-proxy with nftables (nft)"}
	case e.Via == result.ViaDocker:
		return Legend{Color: result.ColorBlue, Name: "published by Docker"}
	}
	return Legend{Color: result.ColorSlate, Name: "kernel datapath"}
}
