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
	Band           float64 // how far the band around 1 reaches, as a factor less 1; 0 for none
	Marks          []Mark
}

// Mark is a row of a chart.
type Mark struct {
	Group     string // the caption above the first of its marks; empty for none
	Label     string
	Color     string
	Value     float64
	Low, High float64 // the ends of the interval, equal without one
	Hollow    bool    // marks no difference
	Path      int     // the place of the row's path in the suite's Traces, from 1 on; 0 if it was not traced
	// Text is the ratio beside the mark. Figure, at the right edge, names its quantity. Tip has all details.
	Text, Figure, Tip string
}

// Legend is a series of rows.
type Legend struct{ Color, Name string }

func (t *workload) chart() Figure {
	c := Chart{Title: upper(t.plural()), Band: t.band()}
	if t.suite.answersPairs() {
		c.Title += ": ratios of the pairs"
		for _, s := range t.suite.answered() {
			for _, p := range t.pairsOf(s) {
				c.Marks = append(c.Marks, t.mark(p.row, p.difference, p.caption, p.label))
			}
		}
		return c.panels()
	}
	base := t.base()
	if base == nil || len(t.contest) < 2 {
		return nil
	}
	if t.inTime() {
		c.Title += ": time, ratio to " + base.name + ", µs"
	} else {
		c.Title += ": ratio to " + base.name + ", " + t.unit
	}
	add := func(e *entry, d difference) {
		m := t.mark(e, d, "", e.named())
		m.Figure = short(e.figure)
		if t.inTime() {
			m.Figure = short(t.meanLatency(e, e.figure))
		}
		c.Marks = append(c.Marks, m)
	}
	add(base, difference{ratio: 1, verdict: higher})
	for _, r := range t.contest {
		if d := t.timed(t.difference(r.entry, base)); r.entry != base && d.ratio > 0 {
			add(r.entry, d)
		}
	}
	slices.SortStableFunc(c.Marks, func(a, b Mark) int {
		if t.better.less || t.inTime() {
			return cmp.Compare(a.Value, b.Value)
		}
		return cmp.Compare(b.Value, a.Value)
	})
	return c.panels()
}

func (t *workload) mark(e *entry, d difference, group, label string) Mark {
	m := Mark{Group: group, Label: label, Color: t.kindOf(e).Color, Value: d.ratio, Low: d.ratio, High: d.ratio,
		Path: t.suite.tracedAs(e.ID), Hollow: d.verdict == tied || d.verdict == tooFew,
		Text: Number(d.ratio, d.places(d.ratio))}
	if d.ci != nil && d.ci[0] > 0 {
		m.Low, m.High = d.ci[0], d.ci[1]
	}
	m.Tip = fmt.Sprintf("%s: %s; ratio %s; %s.", strings.TrimPrefix(group+", "+label, ", "), t.figureOf(e.figure),
		d.interval(), countOf(len(e.Samples), "sample"))
	return m
}

const slowRatio = 1.0 / 3 // the ratio from which on a row is in a panel of its own

// panels splits a chart: rows far from 1 go to a second one. Where most rows are, they stay.
func (c Chart) panels() Figure {
	near := func(m Mark) bool { return m.Value >= slowRatio && m.Value <= 1/slowRatio }
	apart := filter(c.Marks, func(m Mark) bool { return !near(m) })
	switch {
	case len(c.Marks) == 0:
		return nil
	case len(apart) == 0, 2*len(apart) > len(c.Marks):
		return Figure{c}
	}
	second := Chart{Marks: apart, Title: c.Title + ", far from 1", Caption: "Rows far from 1, on an axis of their own."}
	c.Marks = filter(c.Marks, near)
	return Figure{c, second}
}

// key lists the series of the suite's rows: first the series of the file, then others by color.
func (st *suite) key() (out []Legend) {
	for _, t := range st.workloads {
		for _, e := range t.measured() {
			if k := t.kindOf(e); !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
	}
	order := []string{result.ColorGray, result.ColorSlate, result.ColorOrange, result.ColorPurple, result.ColorBlue,
		result.ColorTeal, result.ColorOlive}
	place := func(k Legend) int {
		if i := slices.IndexFunc(st.Series, func(s result.Series) bool { return k == Legend{s.Color, s.Name} }); i >= 0 {
			return i
		}
		return len(st.Series) + slices.Index(order, k.Color)
	}
	slices.SortStableFunc(out, func(a, b Legend) int { return place(a) - place(b) })
	return out
}

// kindOf returns the series of an entry in its suite, or the part of the kernel that handles its packets.
func (t *workload) kindOf(e *entry) Legend {
	if series, ok := t.suite.seriesOf[e.ID]; ok {
		return series
	}
	switch proxy := cmp.Or(e.Proxy, e.Via); {
	case e.Baseline:
		return Legend{Color: result.ColorGray, Name: "baseline, no pod to pod"}
	case e.Via == result.ViaEBPFSocket:
		return Legend{Color: result.ColorOlive, Name: "eBPF per socket"}
	case e.Datapath == result.DatapathEBPF, e.Via == result.ViaEBPFTC:
		return Legend{Color: result.ColorTeal, Name: "eBPF datapath"}
	case proxy == result.ViaIPTables:
		return Legend{Color: result.ColorOrange, Name: "kube-proxy with iptables (ipt)"}
	case proxy == result.ViaNFTables:
		return Legend{Color: result.ColorPurple, Name: "kube-proxy with nftables (nft)"}
	case e.Via == result.ViaDocker:
		return Legend{Color: result.ColorBlue, Name: "published by Docker"}
	}
	return Legend{Color: result.ColorSlate, Name: "kernel datapath"}
}
