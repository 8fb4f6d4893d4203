// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// pen draws simple shapes in one colour.
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

// whisker draws an interval with an end stop on either side.
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
