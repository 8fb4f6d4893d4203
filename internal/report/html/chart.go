// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mustang/internal/report"
)

// Heights of a chart's parts, in its own units.
const (
	headHeight vg.Length = 22 // the caption of a group
	rowHeight  vg.Length = 18
	axisHeight vg.Length = 22
)

// edge is the room beside figures at the right edge, since the reader's font may be wider.
const edge vg.Length = 5

// drawer draws charts with a font that is loaded once.
type drawer struct{ face typeface }

// newDrawer returns a Drawer.
func newDrawer() *drawer { return &drawer{newTypeface()} }

// Draw returns c as an SVG element for an HTML page: it scales to the width of its
// place, takes its colors from CSS variables such as --text and --blue, and tells
// screen readers its title and caption. The label says where the figures are. Each row is a
// group of the class of its color, with an area that has its tip.
func (d *drawer) Draw(c report.Chart, label string) template.HTML {
	ch := &chart{Chart: c, face: d.face, width: chartWidth}
	if c.Shape == report.ShapeForest {
		ch.width = forestWidth
	}
	if c.Shape == report.ShapeCurve {
		return ch.renderCurve(label)
	}
	low, high := bounds(c)
	var labels, texts, figures []string
	for _, m := range c.Marks {
		labels = append(labels, m.Label)
		texts = append(texts, m.Text)
		figures = append(figures, m.Figure)
	}
	ch.left = d.face.widest(labels...) + 12
	if slices.ContainsFunc(c.Marks, func(m report.Mark) bool { return m.Group != "" }) {
		ch.left += indent
	}
	ch.right = max(d.face.widest(texts...)+12, 20)
	if w := d.face.widest(figures...); w > 0 {
		ch.right += w + 10 + edge
	}
	switch room := float64(ch.width - ch.left - ch.right); {
	case c.Shape == report.ShapeForest:
		ch.ticks = ratioTicks(low, high, func(text string) float64 { return float64(d.face.widest(text)) / room })
	case c.Log:
		ch.ticks = logTicks(low, high)
	default:
		ch.ticks = linearTicks(low, high)
	}
	p := newPlot(d.face, low, high, ch.ticks)
	if c.Log {
		p.X.Scale = plot.LogScale{}
	}
	p.Add(margins{ch.left, ch.right}, ch)
	return render(p, vg.Point{X: ch.width, Y: ch.height()}, "Chart. "+c.Title+". "+c.Caption+" "+label, ch.tips())
}

// tips are the texts of the rows.
func (c *chart) tips() []tip {
	var out []tip
	for _, m := range c.Marks {
		out = append(out, tip{m.Color, m.Tip, m.Path})
	}
	return out
}

// bounds returns the ends of a chart's axis.
func bounds(c report.Chart) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	switch c.Shape {
	case report.ShapeForest:
		for _, m := range c.Marks {
			low, high = min(low, m.Value), max(high, m.Value)
		}
		if c.Band > 0 || low > 0.5 && high < 2 {
			low, high = min(low, 1/(1+c.Band)), max(high, 1+c.Band)
		}
		least, most := low/report.FarAway, high*report.FarAway
		for _, m := range c.Marks {
			low, high = min(low, max(m.Low, least)), max(high, min(m.High, most))
		}
		room := max(math.Pow(high/low, 0.04), 1.004)
		return positive(low/room, high*room)
	case report.ShapeStrip:
		for _, m := range c.Marks {
			first, last := extent(m)
			low, high = min(low, first), max(high, last)
		}
		room := max((high-low)*0.02, high*1e-6)
		return max(low-room, 0), high + room
	}
	for _, m := range c.Marks {
		low, high = min(low, m.Value), max(high, m.Value, m.High)
	}
	if c.Log {
		return positive(low/1.2, high*1.1)
	}
	return 0, high
}

// positive keeps the ends of a logarithmic axis apart, and above zero.
func positive(low, high float64) (float64, float64) {
	low = max(low, 1e-300)
	return low, min(max(high, low*1.01), 1e300)
}

// indent is that of the rows of a group.
const indent vg.Length = 8

// chart draws marks from top to bottom. It implements plot.Plotter.
type chart struct {
	report.Chart
	face               typeface
	width, left, right vg.Length // all, and the room for labels and figures
	ticks              []plot.Tick
}

// height is the chart's, with its axis.
func (c *chart) height() vg.Length {
	h := axisHeight
	for i := range c.Marks {
		if c.starts(i) {
			h += headHeight
		}
		h += rowHeight
	}
	return h
}

// starts reports whether mark i is the first of its group.
func (c *chart) starts(i int) bool {
	return c.Marks[i].Group != "" && (i == 0 || c.Marks[i].Group != c.Marks[i-1].Group)
}

// Plot implements plot.Plotter.
func (c *chart) Plot(dc draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&dc)
	c.backdrop(dc, x)
	caption := c.face.style(inkText, true, draw.XLeft)
	label := c.face.style(inkText, false, draw.XLeft)
	figure := c.face.style(inkMuted, false, draw.XRight)
	y := dc.Max.Y
	for i, m := range c.Marks {
		inner := vg.Length(0)
		if c.starts(i) {
			dc.FillText(label, vg.Point{}, fmt.Sprintf("%s%d %.1f", opening, len(c.Marks), headHeight.Points()))
			dc.FillText(caption, vg.Point{X: dc.Min.X - c.left, Y: y - headHeight*0.6}, m.Group)
			dc.FillText(label, vg.Point{}, fmt.Sprint(closing, len(c.Marks)))
			y -= headHeight
		}
		if m.Group != "" {
			inner = indent
		}
		middle := y - rowHeight/2
		dc.FillText(label, vg.Point{}, fmt.Sprint(opening, i))
		dc.FillText(label, vg.Point{X: dc.Min.X - c.left + inner, Y: middle}, m.Label)
		end := dc.Min.X
		if m.Value != 0 || m.High != 0 {
			end = c.draw(dc, x, m, middle)
		}
		at := vg.Point{X: end + 6, Y: middle}
		if c.Shape != report.ShapeBar { // points lie anywhere: their figures are in a column
			at.X = dc.Max.X + 8
		}
		dc.FillText(label, at, m.Text)
		if m.Figure != "" {
			dc.FillText(figure, vg.Point{X: dc.Max.X + c.right - edge, Y: middle}, m.Figure)
		}
		dc.FillText(label, vg.Point{}, fmt.Sprintf("%s%d %.1f %.1f", closing, i, (middle-rowHeight/2).Points(), rowHeight.Points()))
		y -= rowHeight
	}
}

// backdrop draws the grid, the band and the line at one.
func (c *chart) backdrop(dc draw.Canvas, x func(float64) vg.Length) {
	if c.Band > 0 {
		pen{dc: dc, ink: inkBand}.fill(
			vg.Point{X: max(x(1/(1+c.Band)), dc.Min.X), Y: dc.Min.Y}, vg.Point{X: min(x(1+c.Band), dc.Max.X), Y: dc.Max.Y})
	}
	upright := func(p pen, at float64) {
		p.line(vg.Point{X: x(at), Y: dc.Min.Y}, vg.Point{X: x(at), Y: dc.Max.Y})
	}
	for _, t := range c.ticks {
		upright(pen{dc, inkGrid, 0.6}, t.Value)
	}
	if low, high := bounds(c.Chart); c.Shape == report.ShapeForest && low < 1 && high > 1 {
		upright(pen{dc, inkText, 1}, 1)
	}
}

// draw draws a mark around the height y and returns the place of its right end.
func (c *chart) draw(dc draw.Canvas, x func(float64) vg.Length, m report.Mark, y vg.Length) vg.Length {
	at, low, high := x(m.Value), x(m.Low), x(m.High)
	p := pen{dc, inkOf(m.Color), 2}
	switch c.Shape {
	case report.ShapeForest:
		c.interval(p, low, high, y)
		p.symbol(m, vg.Point{X: at, Y: y})
	case report.ShapeStrip:
		c.strip(p, x, m, y)
	default:
		if c.Log { // which has no zero for a bar to start at
			p.symbol(m, vg.Point{X: at, Y: y})
			break
		}
		p.fill(vg.Point{X: dc.Min.X, Y: y - 5.5}, vg.Point{X: max(at, dc.Min.X+0.5), Y: y + 5.5})
	}
	return max(at, high) + 2
}
