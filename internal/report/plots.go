// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"
)

// Figure is a chart, with a second one of the rows that need an axis of their own.
type Figure []Chart

// Values of [Chart.Shape].
const (
	ShapeBar    = "bar"    // bars from zero
	ShapeForest = "forest" // points with intervals around a line at one
	ShapeStrip  = "strip"  // all samples
	ShapeCurve  = "curve"  // percentiles
)

// Chart is a chart with a mark for each row.
type Chart struct {
	Title, Caption string
	Shape          string
	// Log asks for a logarithmic axis.
	Log bool
	// Band is how far the band around one reaches, as a factor less 1; 0 for none.
	Band   float64
	Marks  []Mark
	Legend []Legend
}

// Mark is a row of a chart.
type Mark struct {
	// Group is the caption above the first of its marks; empty for none.
	Group string
	Label string
	Color string
	Value float64
	// Low and High are the ends of the whisker, equal if there is none.
	Low, High float64
	// Hollow marks no difference.
	Hollow bool
	// Samples are a strip's or the percentiles 50, 90, 99 and 99.9 of a curve.
	Samples []float64
	// Path is the place of the row's path among those of its suite, from 1 on; 0 if it was not traced.
	Path int
	// Text is the figure beside the mark, Figure what it is a ratio of, at the right edge, and Tip all that is known of it.
	Text, Figure, Tip string
}

// Legend is a series of a chart.
type Legend struct{ Color, Name string }

// Empty reports whether a chart has nothing to show: no mark, or none above zero.
func (c Chart) Empty() bool {
	return !slices.ContainsFunc(c.Marks, func(m Mark) bool { return c.Shape == ShapeForest || max(m.Value, m.High) > 0 })
}

// slowRatio is the ratio to the reference from which on a row is in a panel of its own, as those through user space are.
const slowRatio = 1.0 / 3

// FarAway is the factor beyond all ratios of a chart at which it cuts intervals off.
const FarAway = 1.5

// cutOff tells that a chart does so.
const cutOff = " Arrows: intervals that reach far beyond the ratios are cut off; the tables have them."

// Cut reports whether the chart cuts an interval off.
func (c Chart) Cut() bool {
	least, most := math.Inf(1), 0.0
	for _, m := range c.Marks {
		least, most = min(least, m.Value), max(most, m.Value)
	}
	return slices.ContainsFunc(c.Marks, func(m Mark) bool { return m.Low < least/FarAway || m.High > most*FarAway })
}

// Panels splits a chart of ratios: rows that are several times slower than the reference go to a second one. Where most
// rows are, they stay.
func (c Chart) Panels(less bool) []Chart {
	slow := func(m Mark) bool { return !less && m.Value < slowRatio || less && m.Value > 1/slowRatio }
	apart := slices.DeleteFunc(slices.Clone(c.Marks), func(m Mark) bool { return !slow(m) })
	if len(apart) == 0 || 2*len(apart) > len(c.Marks) {
		return []Chart{c}
	}
	second := Chart{Shape: ShapeForest, Log: true, Marks: apart, Title: c.Title + ", slow rows", Caption: "Slow rows, on an axis of their own."}
	c.Marks = slices.DeleteFunc(slices.Clone(c.Marks), slow)
	return []Chart{c, second}
}

// LowApart splits a chart of figures: those far below the highest go to a second one, unless they are most.
func (c Chart) LowApart() Figure {
	most := 0.0
	for _, m := range c.Marks {
		most = max(most, m.Value)
	}
	low := func(m Mark) bool { return m.Value < most*slowRatio }
	second := Chart{Shape: c.Shape, Title: c.Title + ", low figures", Caption: "Low figures, on an axis of their own."}
	second.Marks = slices.DeleteFunc(slices.Clone(c.Marks), func(m Mark) bool { return !low(m) })
	if len(second.Marks) == 0 || 2*len(second.Marks) > len(c.Marks) {
		return Figure{c}
	}
	c.Marks = slices.DeleteFunc(slices.Clone(c.Marks), low)
	return Figure{c, second}
}
