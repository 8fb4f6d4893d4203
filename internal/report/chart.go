// SPDX-License-Identifier: Apache-2.0

package report

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Heights of a chart's parts, in its own units.
const (
	headHeight vg.Length = 22 // a connection's name
	rowHeight  vg.Length = 18 // a row below it
	axisHeight vg.Length = 22
)

// mark is one row of a chart.
type mark struct {
	connection string // rows of one are grouped below its name
	label      string
	ink        ink
	value      float64
	low, high  float64 // ends of the whisker; equal when there is none
	text       string
}

// shape is how a chart shows its marks.
type shape int

const (
	shapeBar      shape = iota // from zero, with a whisker
	shapePoint                 // a dot with a whisker
	shapeDumbbell              // a dot at value, a ring at high
)

// chart draws marks from top to bottom. It implements plot.Plotter.
type chart struct {
	face  typeface
	marks []mark
	shape shape
	left  vg.Length
	right vg.Length
	ticks []plot.Tick
	band  float64 // half width of the band around one; 0 draws none
	unity bool    // draw the line at one
}

// height is the chart's, with its axis.
func (c *chart) height() vg.Length {
	h := axisHeight
	for i := range c.marks {
		if c.starts(i) {
			h += headHeight
		}
		h += rowHeight
	}
	return h
}

// starts says whether mark i is the first of its connection.
func (c *chart) starts(i int) bool {
	return c.marks[i].connection != "" && (i == 0 || c.marks[i].connection != c.marks[i-1].connection)
}

// Plot implements plot.Plotter.
func (c *chart) Plot(dc draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&dc)
	c.backdrop(dc, x)
	name := c.face.style(inkText, true, draw.XLeft)
	label := c.face.style(inkMuted, false, draw.XLeft)
	y := dc.Max.Y
	for i, m := range c.marks {
		if c.starts(i) {
			dc.FillText(name, vg.Point{X: dc.Min.X - c.left, Y: y - headHeight*0.6}, m.connection)
			y -= headHeight
		}
		middle := y - rowHeight/2
		dc.FillText(label, vg.Point{X: dc.Min.X - c.left + 10, Y: middle}, m.label)
		end := dc.Min.X
		if m.value != 0 || m.high != 0 {
			end = c.draw(dc, x, m, middle)
		}
		c.caption(dc, m, vg.Point{X: end + 6, Y: middle})
		y -= rowHeight
	}
}

// backdrop draws the grid, the band and the line at one.
func (c *chart) backdrop(dc draw.Canvas, x func(float64) vg.Length) {
	if c.band > 0 {
		pen{dc: dc, ink: inkBand}.fill(
			vg.Point{X: max(x(1-c.band), dc.Min.X), Y: dc.Min.Y}, vg.Point{X: min(x(1+c.band), dc.Max.X), Y: dc.Max.Y})
	}
	upright := func(p pen, at float64) {
		p.line(vg.Point{X: x(at), Y: dc.Min.Y}, vg.Point{X: x(at), Y: dc.Max.Y})
	}
	for _, t := range c.ticks {
		upright(pen{dc, inkGrid, 0.6}, t.Value)
	}
	if c.unity {
		upright(pen{dc, inkText, 1}, 1)
	}
}

// draw draws a mark around the height y and returns where its right end is.
func (c *chart) draw(dc draw.Canvas, x func(float64) vg.Length, m mark, y vg.Length) vg.Length {
	at, low, high := x(m.value), x(m.low), x(m.high)
	p := pen{dc, m.ink, 2}
	switch c.shape {
	case shapeBar:
		p.fill(vg.Point{X: dc.Min.X, Y: y - 5.5}, vg.Point{X: max(at, dc.Min.X+0.5), Y: y + 5.5})
		if m.high > m.low {
			pen{dc, inkText, 1.1}.whisker(low, high, y)
		}
	case shapePoint:
		if m.high > m.low {
			p.whisker(low, high, y)
		}
		p.dot(vg.Point{X: at, Y: y}, 4.2)
	case shapeDumbbell:
		p.line(vg.Point{X: at, Y: y}, vg.Point{X: high, Y: y})
		p.dot(vg.Point{X: at, Y: y}, 4.2)
		p.dot(vg.Point{X: high, Y: y}, 4.2)
		pen{dc: dc, ink: inkSurface}.dot(vg.Point{X: high, Y: y}, 2.4)
	}
	return max(at, high) + 2
}

// caption writes a mark's figure to the right of a bar, or, of points, which lie
// anywhere, in a column at the right edge.
func (c *chart) caption(dc draw.Canvas, m mark, at vg.Point) {
	if c.shape != shapeBar {
		at.X = dc.Max.X + 8
	}
	dc.FillText(c.face.style(inkText, false, draw.XLeft), at, m.text)
}

// widest is the width of the widest of texts.
func (t typeface) widest(bold bool, texts ...string) vg.Length {
	var w vg.Length
	style := t.style(inkText, bold, draw.XLeft)
	for _, s := range texts {
		w = max(w, style.Width(s))
	}
	return w
}
