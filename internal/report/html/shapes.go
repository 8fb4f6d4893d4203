// SPDX-License-Identifier: Apache-2.0

package html

import (
	"math"
	"slices"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mustang/internal/report"
	"mustang/internal/result"
)

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

// line draws a line through points.
func (p pen) line(points ...vg.Point) {
	p.dc.StrokeLines(draw.LineStyle{Color: p.ink.color(), Width: p.width}, points)
}

// interval draws an interval, with an arrow where the chart cuts it off.
func (c *chart) interval(p pen, low, high, y vg.Length) {
	from, to := max(low, p.dc.Min.X), min(high, p.dc.Max.X)
	if to <= from {
		return
	}
	var path vg.Path
	path.Move(vg.Point{X: from, Y: y})
	path.Line(vg.Point{X: to, Y: y})
	for _, end := range []struct {
		x, cut vg.Length // an arrow's direction; 0 for a stop
	}{{from, min(low-from, 0)}, {to, max(high-to, 0)}} {
		back := vg.Length(0)
		if end.cut != 0 {
			back = vg.Length(math.Copysign(4, float64(-end.cut)))
		}
		path.Move(vg.Point{X: end.x + back, Y: y - 3})
		path.Line(vg.Point{X: end.x, Y: y})
		path.Line(vg.Point{X: end.x + back, Y: y + 3})
	}
	p.dc.SetLineStyle(draw.LineStyle{Color: p.ink.color(), Width: p.width})
	p.dc.Stroke(path)
}

// corners returns the number of corners of a color's symbol, 0 for a circle, and the angle of the first.
func corners(color string) (n int, first float64) {
	switch color {
	case result.ColorOrange:
		return 4, math.Pi / 4 // a square
	case result.ColorPurple:
		return 4, 0 // a diamond
	case result.ColorTeal:
		return 3, math.Pi / 2 // a triangle
	case result.ColorOlive:
		return 3, -math.Pi / 2 // a triangle that hangs
	case result.ColorBlue:
		return 6, 0
	case result.ColorGray:
		return 5, math.Pi / 2
	}
	return 0, 0
}

// symbol draws a mark in the form of its series: filled, or hollow.
func (p pen) symbol(m report.Mark, at vg.Point) {
	p.form(m.Color, at, 4.6)
	if m.Hollow {
		p.ink = inkSurface
		p.form(m.Color, at, 2.6)
	}
}

// form draws the filled form of a color.
func (p pen) form(color string, at vg.Point, radius vg.Length) {
	var path vg.Path
	n, first := corners(color)
	if n == 0 {
		path.Move(vg.Point{X: at.X + radius, Y: at.Y})
		path.Arc(at, radius, 0, 2*math.Pi)
	} else {
		radius *= 1.2
	}
	for i := range n {
		angle := first + 2*math.Pi*float64(i)/float64(n)
		corner := vg.Point{X: at.X + radius*vg.Length(math.Cos(angle)), Y: at.Y + radius*vg.Length(math.Sin(angle))}
		if i == 0 {
			path.Move(corner)
		} else {
			path.Line(corner)
		}
	}
	path.Close()
	p.dc.SetColor(p.ink.color())
	p.dc.Fill(path)
}

// fewSamples is the number up to which each sample has a tick.
const fewSamples = 30

// extent returns the ends of a strip: of many samples without the outermost hundredth on each side.
func extent(m report.Mark) (low, high float64) {
	sorted := slices.Sorted(slices.Values(m.Samples))
	if len(sorted) == 0 {
		return min(m.Value, m.Low), max(m.Value, m.High)
	}
	cut := 0
	if len(sorted) > fewSamples {
		cut = max(len(sorted)/100, 1)
	}
	return min(sorted[cut], m.Value), max(sorted[len(sorted)-1-cut], m.Value)
}

// strip draws the samples of a row: ticks, or of many their density, and an upright line at the figure.
func (c *chart) strip(p pen, x func(float64) vg.Length, m report.Mark, y vg.Length) {
	if len(m.Samples) > fewSamples {
		c.density(p, x, m, y)
	} else {
		var ticks vg.Path
		for _, v := range m.Samples {
			ticks.Move(vg.Point{X: x(v), Y: y - 4})
			ticks.Line(vg.Point{X: x(v), Y: y + 4})
		}
		p.dc.SetLineStyle(draw.LineStyle{Color: p.ink.color(), Width: 1})
		p.dc.Stroke(ticks)
	}
	pen{p.dc, inkText, 1.6}.line(vg.Point{X: x(m.Value), Y: y - 7}, vg.Point{X: x(m.Value), Y: y + 7})
}

// density draws a violin: the share of the samples around each of some places.
func (c *chart) density(p pen, x func(float64) vg.Length, m report.Mark, y vg.Length) {
	low, high := extent(m)
	if high <= low {
		return
	}
	const places = 40
	counts := make([]float64, places)
	for _, v := range m.Samples {
		if at := int((v - low) / (high - low) * places); v >= low && v <= high {
			counts[min(at, places-1)]++
		}
	}
	smooth, most := make([]float64, places), 0.0
	for i := range smooth {
		for by, weight := range []float64{0.4, 0.24, 0.06} { // on both sides
			smooth[i] += weight * counts[min(i+by, places-1)]
			if by > 0 {
				smooth[i] += weight * counts[max(i-by, 0)]
			}
		}
		most = max(most, smooth[i])
	}
	var above, below []vg.Point
	for i, n := range smooth {
		at := x(low + (float64(i)+0.5)/places*(high-low))
		h := vg.Length(7*n/most) + 0.4
		above, below = append(above, vg.Point{X: at, Y: y + h}), append(below, vg.Point{X: at, Y: y - h})
	}
	slices.Reverse(below)
	p.dc.FillPolygon(p.ink.color(), append(above, below...))
}
