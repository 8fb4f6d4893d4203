// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strings"

	"mustang/internal/result"
)

type verdict int

const (
	lower  verdict = iota - 1 // numerator is below denominator
	tied                      // no difference found
	higher                    // numerator is above denominator
	tooFew                    // no interval
)

func (v verdict) mark() string { return map[verdict]string{tied: "~", tooFew: "?"}[v] }

// Bounds of an interval for the sentences on it: how far it may reach from 1.
const (
	widestLevel = 0.05 // of a row that is level with the best one
	widestKnown = 0.5  // from here on the ratio is unknown
)

type difference struct {
	verdict verdict
	ratio   float64     // 0 if unknown
	ci      *[2]float64 // nil if it is unknown
}

// judge is the difference that a comparison shows: by its verdict, or where rows took no turns by its interval.
func judge(c result.Comparison) difference {
	d := difference{ratio: c.Ratio, ci: c.CI95}
	switch {
	case c.CI95 == nil:
		d.verdict = tooFew
	case c.Verdict == result.VerdictLower, c.Verdict == "" && c.CI95[1] < 1:
		d.verdict = lower
	case c.Verdict == result.VerdictHigher, c.Verdict == "" && c.CI95[0] > 1:
		d.verdict = higher
	}
	return d
}

// difference compares a with b, which both have a figure: within rounds if the file does, else by their intervals. The
// interval of their ratio is then the widest that these permit.
func (t *workload) difference(a, b *entry) difference {
	d := t.paired(a, b)
	if d.ratio != 0 || b.Median == 0 {
		return d
	}
	d.ratio = a.Median / b.Median
	x, y := a.CI95, b.CI95
	p, q := t.paired(a, t.reference), t.paired(b, t.reference)
	if p.ci != nil && q.ci != nil && q.ratio > 0 { // without the drift of the machine
		x, y, d.ratio = p.ci, q.ci, p.ratio/q.ratio
	}
	if x == nil || y == nil || y[0] <= 0 {
		return d
	}
	d.ci = &[2]float64{x[0] / y[1], x[1] / y[0]}
	switch {
	case d.ci[1] < 1:
		d.verdict = lower
	case d.ci[0] > 1:
		d.verdict = higher
	default:
		d.verdict = tied
	}
	return d
}

// paired is the comparison of a with b within rounds; of ratio 0 if the file lacks it, or b is nil.
func (t *workload) paired(a, b *entry) difference {
	if b != nil {
		if c, found := t.pairs[[2]string{a.ID, b.ID}]; found {
			return judge(c)
		}
		if c, found := t.pairs[[2]string{b.ID, a.ID}]; found {
			return judge(c).turned()
		}
	}
	return difference{verdict: tooFew}
}

func (d difference) turned() difference {
	out := difference{verdict: d.verdict}
	if d.verdict != tooFew {
		out.verdict = -d.verdict
	}
	if d.ratio != 0 {
		out.ratio = 1 / d.ratio
	}
	if d.ci != nil && d.ci[0] > 0 && d.ci[1] > 0 {
		out.ci = &[2]float64{1 / d.ci[1], 1 / d.ci[0]}
	}
	return out
}

func (d difference) half() float64 { return max(d.ci[1]-d.ratio, d.ratio-d.ci[0]) }

// reach is how far an interval extends from 1.
func (d difference) reach() float64 {
	if d.ci == nil {
		return math.Inf(1)
	}
	return max(math.Abs(d.ci[0]-1), math.Abs(d.ci[1]-1))
}

// percent prints "−14 % ±1", or "within 1.2 %" if no difference was found. A star marks uncertain ones.
func (d difference) percent() string {
	excludes := d.ci != nil && (d.ci[0] > 1 || d.ci[1] < 1)
	if d.verdict == tied && !excludes {
		if d.reach() > widestLevel {
			return inside(d.reach()) + "*"
		}
		return inside(d.reach())
	}
	by, sign, places := 100*math.Abs(d.ratio-1), "+", 0
	if d.ratio < 1 {
		sign = "−"
	}
	if by < 2.95 {
		places = 1
	}
	text := sign + Number(by, places) + "\u00a0%"
	switch {
	case d.ratio >= 2:
		text = factor(d.ratio)
	case d.ci != nil:
		text += "\u00a0±" + roundUp(100*d.half(), places)
	}
	if d.verdict == tied || d.verdict == tooFew {
		text += "*"
	}
	return text
}

func (d difference) cell() Cell {
	text := Number(d.ratio, d.places(d.ratio))
	if d.ci != nil {
		text += "±" + strings.TrimPrefix(roundUp(d.half(), d.places(d.ratio)), "0")
	}
	return Cell{Text: text, Mark: d.verdict.mark()}
}

func (d difference) interval() string {
	text := Number(d.ratio, d.places(d.ratio))
	if d.ci != nil {
		text += " (95\u00a0% interval " + Number(d.ci[0], d.places(d.ci[0])) + " to " +
			Number(d.ci[1], d.places(d.ci[1])) + ")"
	}
	return text
}

// places is the number of decimal places: three near 1 in a narrow interval, three significant digits far from it.
func (d difference) places(of float64) int {
	far := func(ratio float64) bool { return ratio >= 2 || ratio < 0.1 && ratio > 0 }
	switch {
	case far(of):
		return fewDecimals(of)
	case far(d.ratio):
		return fewDecimals(d.ratio)
	case d.ci != nil && d.half() < 0.02:
		return 3
	}
	return 2
}

// roundUp prints half of an interval, rounded up, and never as zero: no figure is exact.
func roundUp(v float64, places int) string {
	unit := math.Pow10(-places)
	return Number(max(math.Ceil(v/unit-1e-6), 1)*unit, places)
}

func inside(reach float64) string {
	if reach > widestKnown {
		return "unknown"
	}
	return "within " + percentUp(reach)
}

// percentUp prints a share in per cent, rounded up, with a decimal under three.
func percentUp(share float64) string {
	places := 0
	if share < 0.0295 {
		places = 1
	}
	return roundUp(100*share, places) + "\u00a0%"
}

func shares(least, most float64) string {
	places := 0
	if least < 0.02 || least > 0.95 && most < 1.05 {
		places = 1
	}
	a, b := Number(100*least, places), Number(100*most, places)
	if a == b {
		return a + "\u00a0%"
	}
	return a + " to " + b + "\u00a0%"
}
