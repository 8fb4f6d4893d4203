// SPDX-License-Identifier: Apache-2.0

// Package chart draws the charts of a report as SVG.
package chart

import (
	"html/template"
	"math"

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

// Drawer draws charts with a font that is loaded once.
type Drawer struct{ face typeface }

// NewDrawer returns a Drawer.
func NewDrawer() *Drawer { return &Drawer{newTypeface()} }

// Draw returns c as an SVG element for an HTML page: it scales to the width of its
// place, takes its colors from CSS variables such as --text and --blue, and tells
// screen readers its title and caption. The label says where the figures are.
func (d *Drawer) Draw(c report.Chart, label string) template.HTML {
	low, high := bounds(c)
	ch := &chart{Chart: c, face: d.face}
	var labels, texts []string
	for _, m := range c.Marks {
		labels = append(labels, m.Label)
		texts = append(texts, m.Text)
	}
	ch.left = d.face.widest(labels...) + 20
	ch.right = d.face.widest(texts...) + 12
	ch.ticks = linearTicks(low, high)
	if c.Log {
		ch.ticks = logTicks(low, high)
	}
	p := newPlot(d.face, low, high, ch.ticks)
	if c.Log {
		p.X.Scale = plot.LogScale{}
	}
	p.Add(margins{ch.left, ch.right}, ch)
	return render(p, ch.height(), "Chart. "+c.Title+". "+c.Caption+" "+label)
}

// bounds returns the ends of a chart's axis.
func bounds(c report.Chart) (low, high float64) {
	if c.Shape == report.ShapeRatio {
		low, high = 1-c.Band, 1+c.Band
		for _, m := range c.Marks {
			low, high = min(low, m.Low), max(high, m.High)
		}
		room := max((high-low)*0.05, 0.005)
		return low - room, high + room
	}
	low = math.Inf(1)
	for _, m := range c.Marks {
		low, high = min(low, m.Value), max(high, m.Value, m.High)
	}
	switch {
	case c.Log:
		return low / 1.2, high * 1.1
	case c.Shape == report.ShapeDumbbell:
		high *= 1.03
	}
	return 0, high
}

// chart draws marks from top to bottom. It implements plot.Plotter.
type chart struct {
	report.Chart
	face        typeface
	left, right vg.Length // room for labels and figures
	ticks       []plot.Tick
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
	label := c.face.style(inkMuted, false, draw.XLeft)
	y := dc.Max.Y
	for i, m := range c.Marks {
		if c.starts(i) {
			dc.FillText(caption, vg.Point{X: dc.Min.X - c.left, Y: y - headHeight*0.6}, m.Group)
			y -= headHeight
		}
		middle := y - rowHeight/2
		dc.FillText(label, vg.Point{X: dc.Min.X - c.left + 10, Y: middle}, m.Label)
		end := dc.Min.X
		if m.Value != 0 || m.High != 0 {
			end = c.draw(dc, x, m, middle)
		}
		at := vg.Point{X: end + 6, Y: middle}
		if c.Shape != report.ShapeBar { // points lie anywhere: their figures are in a column
			at.X = dc.Max.X + 8
		}
		dc.FillText(c.face.style(inkText, false, draw.XLeft), at, m.Text)
		y -= rowHeight
	}
}

// backdrop draws the grid, the band and the line at one.
func (c *chart) backdrop(dc draw.Canvas, x func(float64) vg.Length) {
	if c.Band > 0 {
		pen{dc: dc, ink: inkBand}.fill(
			vg.Point{X: max(x(1-c.Band), dc.Min.X), Y: dc.Min.Y}, vg.Point{X: min(x(1+c.Band), dc.Max.X), Y: dc.Max.Y})
	}
	upright := func(p pen, at float64) {
		p.line(vg.Point{X: x(at), Y: dc.Min.Y}, vg.Point{X: x(at), Y: dc.Max.Y})
	}
	for _, t := range c.ticks {
		upright(pen{dc, inkGrid, 0.6}, t.Value)
	}
	if c.Shape == report.ShapeRatio {
		upright(pen{dc, inkText, 1}, 1)
	}
}

// draw draws a mark around the height y and returns the place of its right end.
func (c *chart) draw(dc draw.Canvas, x func(float64) vg.Length, m report.Mark, y vg.Length) vg.Length {
	at, low, high := x(m.Value), x(m.Low), x(m.High)
	p := pen{dc, inkOf(m.Color), 2}
	switch {
	case c.Shape == report.ShapeBar && c.Log: // which has no zero for a bar to start at
		p.dot(vg.Point{X: at, Y: y}, 4.2)
	case c.Shape == report.ShapeBar:
		p.fill(vg.Point{X: dc.Min.X, Y: y - 5.5}, vg.Point{X: max(at, dc.Min.X+0.5), Y: y + 5.5})
		if m.High > m.Low {
			pen{dc, inkText, 1.1}.whisker(low, high, y)
		}
	case c.Shape == report.ShapeRatio:
		if m.High > m.Low {
			p.whisker(low, high, y)
		}
		p.dot(vg.Point{X: at, Y: y}, 4.2)
	case c.Shape == report.ShapeDumbbell:
		p.line(vg.Point{X: at, Y: y}, vg.Point{X: high, Y: y})
		p.dot(vg.Point{X: at, Y: y}, 4.2)
		p.dot(vg.Point{X: high, Y: y}, 4.2)
		pen{dc: dc, ink: inkSurface}.dot(vg.Point{X: high, Y: y}, 2.4)
	}
	return max(at, high) + 2
}

// pen draws simple shapes in one color.
type pen struct {
	dc    draw.Canvas
	ink   ink
	width vg.Length // of lines
}

// fill draws a filled rectangle between two corners.
func (p pen) fill(a, b vg.Point) {
	p.dc.SetColor(p.ink.color())
	p.dc.Fill(vg.Rectangle{Min: a, Max: b}.Path())
}

// line draws a straight line.
func (p pen) line(a, b vg.Point) {
	p.dc.StrokeLines(draw.LineStyle{Color: p.ink.color(), Width: p.width}, []vg.Point{a, b})
}

// whisker draws an interval with a stop at each end.
func (p pen) whisker(low, high, y vg.Length) {
	p.line(vg.Point{X: low, Y: y}, vg.Point{X: high, Y: y})
	for _, x := range []vg.Length{low, high} {
		p.line(vg.Point{X: x, Y: y - 3}, vg.Point{X: x, Y: y + 3})
	}
}

// dot draws a filled circle.
func (p pen) dot(at vg.Point, radius vg.Length) {
	var path vg.Path
	path.Move(vg.Point{X: at.X + radius, Y: at.Y})
	path.Arc(at, radius, 0, 2*math.Pi)
	path.Close()
	p.dc.SetColor(p.ink.color())
	p.dc.Fill(path)
}
