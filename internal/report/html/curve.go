// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// curveHeight is the height of a chart of percentiles.
const curveHeight vg.Length = 270

// quantiles are those of a curve's samples.
func quantiles() []float64 { return []float64{0.5, 0.9, 0.99, 0.999} }

// tail is the place of a quantile on an axis that gives each nine the same room.
func tail(q float64) float64 { return -math.Log10(1 - q) }

// renderCurve draws the percentiles of each row as a line with its name at the right end.
func (c *chart) renderCurve(label string) template.HTML {
	low, high := math.Inf(1), 0.0
	var names []string
	for _, m := range c.Marks {
		low, high = min(low, slices.Min(m.Samples)), max(high, slices.Max(m.Samples))
		names = append(names, m.Label)
	}
	low, high = positive(low/1.1, high*1.1)
	var ticks []plot.Tick
	for i, q := range quantiles() {
		ticks = append(ticks, plot.Tick{Value: tail(q), Label: []string{"p50", "p90", "p99", "p99.9"}[i]})
	}
	p := newPlot(c.face, tail(0.5), tail(0.999), ticks)
	p.Y.Min, p.Y.Max, p.Y.Scale = low, high, plot.LogScale{}
	c.ticks = ratioTicks(low, high, func(string) float64 { return 0.09 })
	var texts []string
	for _, t := range c.ticks {
		texts = append(texts, t.Label)
	}
	c.left, c.right = c.face.widest(texts...)+10, c.face.widest(names...)+22
	p.Add(margins{c.left, c.right}, curves{c})
	height := max(curveHeight, vg.Length(len(c.Marks))*15+axisHeight+14)
	drawn := render(p, vg.Point{X: c.width, Y: height}, "Chart. "+c.Title+". "+c.Caption+" "+label, c.tips())
	return template.HTML(strings.Replace(string(drawn), `class="chart"`, `class="chart curve"`, 1)) // whose rows are no lines of it
}

// curves draws the lines. It implements plot.Plotter.
type curves struct{ *chart }

// dashes tell lines of one color apart.
func dashes(i int) []vg.Length {
	return [][]vg.Length{nil, {6, 3}, {2, 2}, {8, 2, 2, 2}}[i%4]
}

// Plot implements plot.Plotter.
func (c curves) Plot(dc draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&dc)
	figures := c.face.style(inkMuted, false, draw.XRight)
	for _, t := range c.ticks {
		if y(t.Value) < dc.Min.Y+10 || y(t.Value) > dc.Max.Y-7 { // where the percentiles' names are, and the edge
			continue
		}
		pen{dc, inkGrid, 0.6}.line(vg.Point{X: dc.Min.X, Y: y(t.Value)}, vg.Point{X: dc.Max.X, Y: y(t.Value)})
		dc.FillText(figures, vg.Point{X: dc.Min.X - 6, Y: y(t.Value)}, t.Label)
	}
	order := make([]int, len(c.Marks))
	for i := range order {
		order[i] = i
	}
	last := func(i int) float64 { return c.Marks[i].Samples[len(c.Marks[i].Samples)-1] }
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, last(b)-last(a))) })
	next, name := dc.Max.Y+8, c.face.style(inkText, false, draw.XLeft)
	for rank, i := range order {
		m := c.Marks[i]
		dc.FillText(name, vg.Point{}, fmt.Sprint(opening, i))
		var points []vg.Point
		for j, v := range m.Samples {
			points = append(points, vg.Point{X: x(tail(quantiles()[j])), Y: y(v)})
		}
		ink := inkOf(m.Color)
		dc.StrokeLines(draw.LineStyle{Color: ink.color(), Width: 1.6, Dashes: dashes(i)}, points)
		for _, at := range points {
			pen{dc: dc, ink: ink}.form(m.Color, at, 3)
		}
		end := points[len(points)-1]
		floor := dc.Min.Y + vg.Length(len(order)-1-rank)*15
		at := max(min(end.Y, next-15), floor)
		next = at
		pen{dc, ink, 0.6}.line(vg.Point{X: end.X + 2, Y: end.Y}, vg.Point{X: end.X + 12, Y: at})
		dc.FillText(name, vg.Point{X: end.X + 15, Y: at}, m.Label)
		dc.FillText(name, vg.Point{}, fmt.Sprintf("%s%d %.1f %.1f", closing, i, (at-7).Points(), 14.0))
	}
}
