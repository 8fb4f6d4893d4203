// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strings"

	"mustang/internal/report/format"
)

// Styles of a ratio in a table, from wide to narrow.
const (
	styleInterval = iota
	styleHalf
	stylePlain
	styleBare // as plain; what is no difference has no figure
	styles
)

// ratioCell prints a ratio: with its mark, and with its interval in some styles. A
// ratio whose interval is wider than its distance from one is marked as rough.
func ratioCell(d difference, style int) Cell {
	places := ratioPlaces(d)
	text, mark := format.ShortRatio(d.ratio, places), strings.TrimSpace(d.verdict.mark())
	if mark == "" && d.rough() {
		text = "≈" + text
	}
	switch {
	case d.ci == nil:
	case style == styleInterval:
		text += mark + " (" + format.ShortRatio(d.ci[0], places) + "–" + format.ShortRatio(d.ci[1], places) + ")"
		return Cell{Text: text}
	case style == styleHalf:
		unit := math.Pow10(-places)
		half := math.Ceil(d.half()/unit) * unit // nothing is known exactly
		text += "±" + strings.TrimPrefix(format.Number(half, places), "0")
	}
	return Cell{Text: text, Mark: mark}
}

// costCell prints the cost of a cluster IP in per cent of the pod IP's figure, or that of a stated pair, with half of its
// interval: two significant digits of that in the widest style, and one in the others. In the
// narrowest one, what is no difference is only its mark.
func (t *workloadTable) costCell(d difference, style int) Cell {
	cost := 100 * (1 - d.ratio)
	if t.wording.less {
		cost = -cost
	}
	mark := strings.TrimSpace(d.verdict.mark())
	if mark == "" && d.rough() {
		mark = "≈"
	}
	switch {
	case style == styleBare && (d.verdict == tied || d.verdict == unclear):
		return Cell{Text: mark}
	case d.ci == nil:
		return Cell{Text: mark + format.Number(cost, 0)}
	case d.half() > 0.99:
		return Cell{Text: mark + format.Number(cost, 0) + "±>99"}
	}
	most := max(stylePlain-style, 0) // of decimal places
	digits := max(most, 1)
	half := max(100*d.half(), math.Pow10(-most))
	places := min(max(digits-1-int(math.Floor(math.Log10(half))), 0), most)
	unit := math.Pow10(-places)
	half = math.Ceil(half/unit-1e-9) * unit // nothing is known exactly
	return Cell{Text: mark + format.Number(cost, places) + "±" + strings.TrimPrefix(format.Number(half, places), "0")}
}

// half is how far the interval extends from the ratio.
func (d difference) half() float64 { return max(d.ci[1]-d.ratio, d.ratio-d.ci[0]) }

// ratioPlaces is the number of decimal places of a ratio: three near one, where its interval
// is narrow enough for them.
func ratioPlaces(d difference) int {
	if format.FarFromOne(d.ratio) {
		return format.FewDecimals(d.ratio)
	}
	if d.ci != nil && d.half() < 0.02 {
		return 3
	}
	return 2
}

// reach prints a range of half-widths. Those that say nothing of differences have no figure.
func reach(least, most float64) string {
	switch {
	case least >= tooWide:
		return "over ±" + format.Percent(tooWide)
	case most >= tooWide:
		return "±" + format.Percent(least) + " and more"
	case format.Percent(least) == format.Percent(most):
		return "±" + format.Percent(least)
	}
	return "±" + format.Percent(least) + " to ±" + format.Percent(most)
}

// widths returns the least and the greatest half-width of the intervals of cluster IPs over
// pod IPs, or of ratios to the reference, as shares; 0 without any.
func (st *suiteTables) widths() (least, most float64) {
	least = math.Inf(1)
	for _, t := range st.workloads {
		for _, e := range t.withoutRepeats() {
			d := difference{}
			switch {
			case e.cost != nil:
				d = t.of(*e.cost)
			case t.suite.list() && t.reference != nil && t.reference.ok() && e.ok() && e != t.reference:
				d = t.difference(e, t.reference)
			}
			if d.ci != nil && d.ratio > 0 {
				least, most = min(least, d.half()/d.ratio), max(most, d.half()/d.ratio)
			}
		}
	}
	return least, most
}
