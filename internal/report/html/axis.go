// SPDX-License-Identifier: Apache-2.0

package html

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// newPlot makes an empty plot with a horizontal axis in the page's style.
func newPlot(face typeface, low, high float64, ticks []plot.Tick) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.TextHandler = face.handler
	p.HideY()
	p.X.Min, p.X.Max = low, high
	p.X.Padding = 0
	p.Y.Padding = 0
	p.X.LineStyle = draw.LineStyle{}
	p.X.Tick.LineStyle = draw.LineStyle{}
	p.X.Tick.Length = 2
	p.X.Tick.Label = face.style(inkMuted, false, draw.XCenter)
	p.X.Tick.Label.YAlign = draw.YTop
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	return p
}

// maxTicks bounds the ticks of an axis, whatever its range.
const maxTicks = 20

// linearTicks returns four to seven round numbers between low and high.
func linearTicks(low, high float64) []plot.Tick {
	step := niceStep((high - low) / 6)
	places := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	thousands := high >= 10000
	first := math.Ceil(low/step - 1e-9)
	var out []plot.Tick
	for n := range maxTicks {
		v := (first + float64(n)) * step
		if v > high*(1+1e-9) {
			break
		}
		out = append(out, plot.Tick{Value: v, Label: tickLabel(v, places, thousands)})
	}
	return out
}

// logTicks returns the numbers 1, 2 and 5 of each decade between low and high, and
// of many decades the 1 alone.
func logTicks(low, high float64) []plot.Tick {
	steps := []float64{1, 2, 5}
	if high/low > 100 {
		steps = []float64{1}
	}
	var out []plot.Tick
	for decade := math.Pow(10, math.Floor(math.Log10(low))); decade <= high && len(out) < 3*maxTicks; decade *= 10 {
		for _, s := range steps {
			if v := decade * s; v >= low && v <= high {
				out = append(out, plot.Tick{Value: v, Label: logLabel(v)})
			}
		}
	}
	return out
}

// ratioTicks returns round ratios between low and high: as many as have room, where wide tells the share of the axis that a label
// takes.
func ratioTicks(low, high float64, wide func(label string) float64) []plot.Tick {
	var sets [][]float64
	for _, steps := range [][]float64{{1}, {1, 3}, {1, 2, 5}, {1, 1.25, 2, 3, 5, 8}, {1, 1.25, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}} {
		var set []float64
		for decade := math.Pow(10, math.Floor(math.Log10(low))); decade <= high && len(set) < 6*maxTicks; decade *= 10 {
			for _, step := range steps {
				set = append(set, decade*step)
			}
		}
		sets = append(sets, set)
	}
	for _, step := range []float64{0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005} {
		var set []float64
		for n := math.Ceil(low / step); n*step <= high && len(set) < 2*maxTicks; n++ {
			set = append(set, n*step)
		}
		sets = append(sets, set)
	}
	var best []plot.Tick
	for _, set := range sets {
		ticks, end := []plot.Tick(nil), math.Inf(-1)
		for _, v := range set {
			if v < low || v > high {
				continue
			}
			text := logLabel(math.Round(v*1e9) / 1e9)
			at, half := math.Log(v/low)/math.Log(high/low), wide(text)/2+0.015
			if at-half < end {
				ticks = nil
				break
			}
			end = at + half
			ticks = append(ticks, plot.Tick{Value: v, Label: text})
		}
		if len(ticks) >= max(len(best), 1) && len(ticks) <= mostRatioTicks {
			best = ticks
		}
	}
	return best
}

// mostRatioTicks is the most ticks that an axis of ratios needs.
const mostRatioTicks = 7

// logLabel prints a figure of a logarithmic axis, with commas between thousands.
func logLabel(v float64) string {
	if v < 1e-3 || v >= 1e7 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	whole, _, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(raw float64) float64 {
	if raw <= 0 || math.IsInf(raw, 0) || math.IsNaN(raw) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, s := range []float64{1, 2, 5} {
		if raw <= s*power {
			return s * power
		}
	}
	return 10 * power
}

// tickLabel prints an axis figure, 25000 as "25k" if in thousands.
func tickLabel(v float64, places int, thousands bool) string {
	if thousands && v != 0 {
		return strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
	}
	text := strconv.FormatFloat(v+0, 'f', places, 64) // without a sign before 0
	if v >= 1000 {
		text = text[:1] + "," + text[1:]
	}
	return text
}

// margins reserve room to the left and right of a plot's data.
type margins struct{ left, right vg.Length }

// Plot implements plot.Plotter.
func (m margins) Plot(draw.Canvas, *plot.Plot) {}

// GlyphBoxes implements plot.GlyphBoxer.
func (m margins) GlyphBoxes(*plot.Plot) []plot.GlyphBox {
	return []plot.GlyphBox{
		{X: 0, Rectangle: vg.Rectangle{Min: vg.Point{X: -m.left}, Max: vg.Point{}}},
		{X: 1, Rectangle: vg.Rectangle{Min: vg.Point{}, Max: vg.Point{X: m.right}}},
	}
}
