// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"

	"gonum.org/v1/plot"
)

// drawRatios draws a chart of ratios around one.
func (f figure) drawRatios(face typeface, marks []mark, shown []*entry, band float64) figure {
	low, high := 1-band, 1+band
	for _, m := range marks {
		low, high = min(low, m.low), max(high, m.high)
	}
	room := max((high-low)*0.05, 0.005)
	low, high = low-room, high+room
	ticks := linearTicks(low, high)
	c := &chart{face: face, marks: marks, shape: shapePoint, ticks: ticks, band: band, unity: true}
	return f.finish(c, newPlot(face, low, high, ticks), shown)
}

// draw draws a chart of figures from zero on, or on a logarithmic scale if
// dots need one.
func (f figure) draw(face typeface, marks []mark, s shape, shown []*entry) figure {
	low, high := math.Inf(1), 0.0
	for _, m := range marks {
		low, high = min(low, m.value), max(high, m.value, m.high)
	}
	if len(marks) == 0 || high <= 0 {
		return figure{}
	}
	c := &chart{face: face, marks: marks, shape: s}
	if s == shapeDumbbell && wideRange(marks) {
		low, high = low/1.2, high*1.1
		c.ticks = logTicks(low, high)
		p := newPlot(face, low, high, c.ticks)
		p.X.Scale = plot.LogScale{}
		return f.finish(c, p, shown)
	}
	if s == shapeDumbbell {
		high *= 1.03
	}
	c.ticks = linearTicks(0, high)
	return f.finish(c, newPlot(face, 0, high, c.ticks), shown)
}

// wideRange says that marks need a logarithmic scale.
func wideRange(marks []mark) bool {
	low, high := math.Inf(1), 0.0
	for _, m := range marks {
		low, high = min(low, m.value), max(high, m.high)
	}
	return high > 20*low
}

// finish lays the chart out and renders it.
func (f figure) finish(c *chart, p *plot.Plot, shown []*entry) figure {
	if len(c.marks) == 0 {
		return figure{}
	}
	var labels, texts []string
	for _, m := range c.marks {
		labels = append(labels, m.label)
		texts = append(texts, m.text)
	}
	c.left = c.face.widest(false, labels...) + 20
	c.right = c.face.widest(false, texts...) + 12
	p.Add(sides{c.left, c.right}, c)
	f.Legend = legendOf(shown)
	f.SVG = render(p, c.height(), "Chart. "+f.Title+". "+f.Caption+" The figures are in the tables of this page.")
	return f
}
