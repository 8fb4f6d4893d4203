// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// verdict is what a ratio shows.
type verdict int

const (
	tooFew verdict = iota // no interval
	tied                  // no difference found
	lower                 // numerator is below denominator
	higher                // numerator is above denominator
)

// mark returns the sign of a verdict behind a ratio in a table.
func (v verdict) mark() string {
	switch v {
	case tied:
		return "~"
	case tooFew:
		return "?"
	case lower, higher:
	}
	return ""
}

// muchLost is the share of lost datagrams from which on a row is named with it.
const muchLost = 0.05

// lossy reports whether a row lost so much.
func (e *entry) lossy() bool { return e.ok() && e.LostShare > muchLost }

// named is the entry's name, with the loss if that is large.
func (e *entry) named() string {
	if !e.lossy() {
		return e.name
	}
	return e.name + " (" + format.Percent(e.LostShare) + " lost)"
}

// difference is the ratio of two entries and its verdict.
type difference struct {
	verdict verdict
	ratio   float64     // 0 if it is not known
	ci      *[2]float64 // nil without a comparison within rounds
	class   string      // of the noise
}

// judge is the difference that a comparison shows: by its verdict, or where rows took no turns by its interval.
func judge(c result.Comparison) difference {
	d := difference{ratio: c.Ratio, ci: c.CI95, class: c.Class}
	switch {
	case c.CI95 == nil:
	case c.Verdict == result.VerdictLower, c.Verdict == "" && c.CI95[1] < 1:
		d.verdict = lower
	case c.Verdict == result.VerdictHigher, c.Verdict == "" && c.CI95[0] > 1:
		d.verdict = higher
	default:
		d.verdict = tied
	}
	return d
}

// apart reports whether the interval excludes 1.
func (d difference) apart() bool { return d.ci != nil && (d.ci[0] > 1 || d.ci[1] < 1) }

// span prints how far the ends of an interval that excludes 1 lie from it: "7 to 20 %".
func (d difference) span() string {
	near, far := math.Abs(d.ci[1]-1), math.Abs(d.ci[0]-1)
	if near > far {
		near, far = far, near
	}
	return format.Number(math.Floor(100*near), 0) + " to " + percentUp(far)
}

// difference compares a with b, which both have a figure: by the comparison within
// rounds if the file has one, else by their figures and intervals.
func (t *workloadTable) difference(a, b *entry) difference {
	if d := t.paired(a, b); d.ratio != 0 || b.Median == 0 {
		return d
	}
	d := difference{ratio: a.Median / b.Median}
	x, y := a.CI95, b.CI95
	p, q := t.paired(a, t.reference), t.paired(b, t.reference)
	if p.ci != nil && q.ci != nil && q.ratio > 0 { // without the drift of the machine
		x, y, d.ratio = p.ci, q.ci, p.ratio/q.ratio
	}
	switch {
	case x == nil || y == nil:
	case x[0] <= y[1] && y[0] <= x[1]:
		d.verdict = tied
	case d.ratio < 1:
		d.verdict = lower
	default:
		d.verdict = higher
	}
	return d
}

// paired is the comparison of a with b within rounds; zero if the file has none, or there is no b.
func (t *workloadTable) paired(a, b *entry) difference {
	if b == nil {
		return difference{}
	}
	if c := t.pairs[[2]string{a.ID, b.ID}]; c != nil {
		return judge(*c)
	}
	if c := t.pairs[[2]string{b.ID, a.ID}]; c != nil {
		return judge(*c).turned()
	}
	return difference{}
}

// turned is the difference of b from a.
func (d difference) turned() difference {
	out := difference{verdict: d.verdict, class: d.class}
	switch d.verdict {
	case lower:
		out.verdict = higher
	case higher:
		out.verdict = lower
	case tooFew, tied:
	}
	if d.ratio != 0 {
		out.ratio = 1 / d.ratio
	}
	if d.ci != nil && d.ci[0] > 0 && d.ci[1] > 0 {
		out.ci = &[2]float64{1 / d.ci[1], 1 / d.ci[0]}
	}
	return out
}

// size is the difference in per cent, or as a factor, with words for either and its interval if it has one.
func (d difference) size(words, asFactor string) string {
	text := format.Amount(d.ratio) + words
	if d.ratio >= 2 {
		text = format.Amount(d.ratio) + asFactor
	}
	switch {
	case d.ci == nil:
		return "about " + text + " by the figures"
	case d.ratio >= 2:
		return text + " (" + format.Number(d.ci[0], 1) + "\u00a0to\u00a0" + format.Number(d.ci[1], 1) + ")"
	}
	ends := []float64{math.Abs(d.ci[0]-1) * 100, math.Abs(d.ci[1]-1) * 100}
	slices.Sort(ends)
	places := 1
	if ends[1] < 0.095 {
		places = 2
	}
	return text + " (" + format.Number(ends[0], places) + "\u00a0to\u00a0" + format.Number(ends[1], places) + ")"
}

// describe puts a difference in words.
func (t *workloadTable) describe(d difference) string {
	switch d.verdict {
	case tied:
		if d.ci == nil {
			return "no difference found"
		}
		return "no difference found (" + inside(d.reach()) + ")"
	case lower:
		return d.size(" "+t.wording.lower, "")
	case higher:
		return d.size(" "+t.wording.higher, " "+t.wording.factor)
	case tooFew:
	}
	return "too few rounds to tell"
}

// half is how far the interval extends from the ratio.
func (d difference) half() float64 { return max(d.ci[1]-d.ratio, d.ratio-d.ci[0]) }

// reach is how far an interval extends from 1.
func (d difference) reach() float64 {
	if d.ci == nil {
		return math.Abs(d.ratio - 1)
	}
	return max(math.Abs(d.ci[0]-1), math.Abs(d.ci[1]-1))
}
