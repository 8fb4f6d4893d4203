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
	tooFew  verdict = iota // under six rounds
	tied                   // no difference found
	lower                  // numerator is below denominator
	higher                 // numerator is above denominator
	unclear                // no difference found, but too noisy or lossy to say so
)

// mark returns the sign of a verdict behind a ratio in a table.
func (v verdict) mark() string {
	switch v {
	case tied:
		return "~"
	case tooFew, unclear:
		return "?"
	case lower, higher:
	}
	return " "
}

// turned is the verdict on the inverse ratio.
func (v verdict) turned() verdict {
	switch v {
	case lower:
		return higher
	case higher:
		return lower
	case tooFew, tied, unclear:
	}
	return v
}

// muchLost is the share of lost datagrams from which a row is not said to be as good as
// another.
const muchLost = 0.05

// lossy reports whether a row lost so much.
func (e *entry) lossy() bool { return e != nil && e.ok() && e.LostShare > muchLost }

// named is the entry's name, with the loss if that is large.
func (e *entry) named() string {
	if !e.lossy() {
		return e.name
	}
	return e.name + " (" + format.Percent(e.LostShare) + " lost)"
}

// tiedAt returns the verdict on a difference of two entries. No rows are tied whose figures lie a factor apart, or may: by the
// interval of their ratio, or since as much lies between two measurements of one row. Nor are rows one of which lost datagrams.
func (t *workloadTable) tiedAt(d difference, a, b *entry) verdict {
	least, most := d.ratio, d.ratio
	if d.ci != nil {
		least, most = min(least, d.ci[0]), max(most, d.ci[1])
	}
	if d.verdict == tied && (most >= 2 || least <= 0.5 || t.spreads[d.class].share >= tooWide || a.lossy() || b.lossy()) {
		return unclear
	}
	return d.verdict
}

// verdictOn returns the verdict on a comparison of the table.
func (t *workloadTable) verdictOn(c result.Comparison) verdict {
	d := difference{t.spreads[c.Class].judge(c), c.Ratio, c.CI95, c.Class}
	return t.tiedAt(d, t.byID[c.Numerator], t.byID[c.Denominator])
}

// judge returns the verdict on c in view of its interval and the spread.
func (s spread) judge(c result.Comparison) verdict {
	switch {
	case c.CI95 == nil:
		return tooFew
	case c.Verdict == result.VerdictNone:
		return tied
	case c.Verdict == result.VerdictLower:
		return lower
	case c.Verdict == result.VerdictHigher:
		return higher
	case c.CI95[0] <= 1 && c.CI95[1] >= 1, s.known() && math.Abs(c.Ratio-1) <= s.share:
		return tied
	case c.Ratio < 1:
		return lower
	}
	return higher
}

// difference is the ratio of two entries and its verdict.
type difference struct {
	verdict verdict
	ratio   float64     // 0 if it is not known
	ci      *[2]float64 // nil without a comparison within rounds
	class   string      // of the noise
}

// of is the difference that a comparison shows.
func (t *workloadTable) of(c result.Comparison) difference {
	return difference{t.verdictOn(c), c.Ratio, c.CI95, c.Class}
}

// difference compares a with b, which both have a figure: by the comparison within
// rounds if the file has one, else by their figures and intervals.
func (t *workloadTable) difference(a, b *entry) difference {
	if d := t.paired(a, b); d.ratio != 0 {
		return d
	}
	v, span := t.compareFigures(a, b)
	d := difference{verdict: v, class: result.NoisierClass(t.class(a), t.class(b))}
	if b.Median != 0 {
		d.ratio = a.Median / b.Median
		d.verdict = t.tiedAt(difference{v, d.ratio, span, d.class}, a, b)
	}
	return d
}

// compareFigures judges by whether intervals overlap: those of both rows' ratios to the reference if they have them, since these
// are without the drift of the machine, else those of their figures. The span is that of the ratios that they allow.
func (t *workloadTable) compareFigures(a, b *entry) (v verdict, span *[2]float64) {
	spread := t.spreads[result.NoisierClass(t.class(a), t.class(b))]
	x, y, ratio := a.CI95, b.CI95, a.Median/b.Median
	if p, q := t.paired(a, t.reference), t.paired(b, t.reference); p.ci != nil && q.ci != nil && q.ratio > 0 {
		x, y, ratio = p.ci, q.ci, p.ratio/q.ratio
	}
	if x == nil || y == nil {
		return tooFew, nil
	}
	if y[0] > 0 {
		span = &[2]float64{x[0] / y[1], x[1] / y[0]}
	}
	switch {
	case x[0] <= y[1] && y[0] <= x[1], spread.known() && math.Abs(ratio-1) <= spread.share:
		return tied, span
	case ratio < 1:
		return lower, span
	}
	return higher, span
}

// paired is the comparison of a with b within rounds; zero if the file has none, or there is no b.
func (t *workloadTable) paired(a, b *entry) difference {
	if b == nil {
		return difference{}
	}
	if c := t.pairs[[2]string{a.ID, b.ID}]; c != nil {
		return t.of(*c)
	}
	if c := t.pairs[[2]string{b.ID, a.ID}]; c != nil {
		return t.of(*c).turned()
	}
	return difference{}
}

// turned is the difference of b from a.
func (d difference) turned() difference {
	out := difference{verdict: d.verdict.turned(), class: d.class}
	if d.ratio != 0 {
		out.ratio = 1 / d.ratio
	}
	if d.ci != nil && d.ci[0] > 0 && d.ci[1] > 0 {
		out.ci = &[2]float64{1 / d.ci[1], 1 / d.ci[0]}
	}
	return out
}

// size is the difference in per cent, or as a factor, with words for either and its
// interval if it has one. It is rough where the interval is wider than the difference.
func (d difference) size(words, asFactor string) string {
	text := format.Amount(d.ratio) + words
	if d.ratio >= 2 {
		text = format.Amount(d.ratio) + asFactor
	}
	switch {
	case d.ci == nil:
		return "about " + text + " by the figures"
	case d.rough() && d.ratio >= 2:
		return "about " + text
	case d.rough():
		return "about " + format.Roughly(d.ratio) + words
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

// rough reports whether the interval is wider than the difference itself.
func (d difference) rough() bool {
	return d.ci != nil && d.ci[1]-d.ci[0] > math.Abs(d.ratio-1)
}

// describe puts a difference in words.
func (t *workloadTable) describe(d difference) string {
	switch d.verdict {
	case tied:
		return "no difference found"
	case lower:
		return d.size(" "+t.wording.lower, "")
	case higher:
		return d.size(" "+t.wording.higher, " "+t.wording.factor)
	case unclear:
		return cannotTell + " of a ratio of " + format.ShortRatio(d.ratio, ratioPlaces(d)) + t.reason(d)
	case tooFew:
	}
	return "too few rounds to tell"
}

// cannotTell is said of figures that differ much, or of which one is of few of its datagrams, and
// whose difference is not claimed.
const cannotTell = "this run cannot tell"

// reason tells why it is not claimed.
func (t *workloadTable) reason(d difference) string {
	if d.ratio > 0.5 && d.ratio < 2 || d.ci == nil {
		return ""
	}
	if s := t.spreads[d.class]; d.ci[1] >= 1/s.factor && d.ci[0] <= s.factor {
		return ": the same path" + among(d.class) + " measured twice may differ by a factor of " + format.Number(s.factor, 1)
	}
	return ": it does not stand Holm's correction for all comparisons"
}
