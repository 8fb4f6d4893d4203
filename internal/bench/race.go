// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/result"
)

// A run of a given time looks at its data after each quarter of that time but the last. Rows whose questions are
// answered get no more turns, and workloads with wide intervals get more time. Stopping at a look narrows intervals
// falsely. Each look therefore spends a part of the 5 % of intervals that may miss (see [stats.Comparison.Spent]),
// and the end the rest.
const (
	looks         = 3
	lookAlpha     = 0.01 / looks
	endAlpha      = stats.Significance - looks*lookAlpha
	lookInstances = 6 // the least number of instances before a look: Student's t of fewer is wide
)

// A question is answered in two cases. A difference was found and its interval is narrow: at most narrowEnough or a
// fifth of the difference to each side. Or the interval lies within equalWithin of 1.
const (
	narrowEnough = 0.02
	narrowPart   = 0.2
	equalWithin  = 0.005
)

func (o Options) races() bool { return o.Rounds == 0 && o.Until == 0 }

// alpha is the part of the significance that a comparison spends: lookAlpha if a look answered one of its rows.
func (o Options) alpha(numerator, denominator *measuredRow) float64 {
	switch {
	case numerator.answered || denominator.answered:
		return lookAlpha
	case o.races():
		return endAlpha
	}
	return stats.Significance
}

func (b *budget) quarter() bool {
	spent, before := time.Since(b.started), b.looks
	for b.options.races() && b.looks < looks && spent >= b.options.Time*time.Duration(b.looks+1)/(looks+1) {
		b.looks++
	}
	return b.looks > before
}

// look marks the rows whose questions are all answered, and weighs the workloads by their widest open interval. The
// time needed to narrow an interval grows as the square of its width. It reports whether a question is open: without
// one the run ends. Rows rest only beside an A/A pair, which goes on and shows how the machine has changed since.
func (r *run) look(rows []*measuredRow, b *budget) (open bool) {
	byKey, suite := keyed(rows), rows[0].spec.suite
	matrix, widest := suite.Report.Layout == result.LayoutMatrix, map[string]float64{}
	for _, w := range r.options.workloads(suite) {
		of := comparedRows{suite, w, byKey}
		all := turned(r.compared.compareAll(r.options, of))
		if of.base() == nil {
			open = true
			continue
		}
		widest[w.String()] = 0
		busy := map[string]bool{} // IDs with an open question
		for i, v := range verdictsAt(all, lookAlpha, of.contests()) {
			c := all[i]
			settled := c.Asks == "" && matrix || answered(c.estimate.Spent(lookAlpha), v.Difference != 0)
			if c.AA || !settled {
				busy[c.Numerator], busy[c.Denominator] = true, true
			}
			if !c.AA && !settled {
				open = true
				widest[w.String()] = max(widest[w.String()], min(c.estimate.HalfWidth(), 1))
			}
		}
		for _, row := range rows {
			if row.spec.workload == w {
				row.answered = row.answered || !busy[row.row.ID]
			}
		}
	}
	b.weights = weigh(widest)
	return open
}

func turned(all []comparison) []comparison {
	return slices.DeleteFunc(slices.Clone(all), func(c comparison) bool { return c.estimate == nil })
}

func keyed(rows []*measuredRow) map[result.Key]*measuredRow {
	byKey := map[result.Key]*measuredRow{}
	for _, row := range rows {
		byKey[row.row.Key()] = row
	}
	return byKey
}

// verdictsAt returns the verdicts on comparisons of rows that take turns. Each spends a part of the significance.
func verdictsAt(all []comparison, alpha float64, further int) []stats.Verdict {
	return stats.Judge(convert(all, func(c comparison) stats.Claim {
		return stats.Claim{Comparison: c.estimate.Spent(alpha), Class: c.Class, AA: c.AA, Asked: c.Asks != ""}
	}), further)
}

// answered reports whether a comparison answers its question: its interval is within equalWithin of 1, or a
// difference was found with a narrow interval.
func answered(c stats.Comparison, differs bool) bool {
	if c.Interval == nil || c.Over == stats.Round {
		return false
	}
	if c.Interval[0] > 1-equalWithin && c.Interval[1] < 1+equalWithin {
		return true
	}
	return differs && c.HalfWidth() <= max(narrowEnough, narrowPart*math.Abs(c.Value-1))
}

// Bounds of a workload's weight, so that none starves.
const leastWeight, mostWeight = 0.5, 2

func weigh(widest map[string]float64) map[string]float64 {
	sum := 0.0
	for _, w := range widest {
		sum += w * w
	}
	weights := map[string]float64{}
	for workload, w := range widest {
		weights[workload] = 1
		if sum > 0 {
			weights[workload] = min(max(w*w/sum*float64(len(widest)), leastWeight), mostWeight)
		}
	}
	return weights
}

const mostSoFar = 4 // the number of further rows, after the best one, in a line of interim figures

// soFar shows the interim figures of a suite: a line for each workload, with the best row and the next ones.
func (r *run) soFar(rows []*measuredRow, instances int) {
	byKey, o := keyed(rows), r.options
	o.Progress.Note(fmt.Sprintf("so far, networks built %d times:", instances))
	for _, w := range o.workloads(rows[0].spec.suite) {
		of := comparedRows{rows[0].spec.suite, w, byKey}
		ranked := of.ranked()
		if len(ranked) < 2 {
			continue
		}
		best, _ := byKey[ranked[0].Row(of.suite.Name, w).Key()].result()
		rate := fmt.Sprintf("%.1f %s", best.Median, best.Unit)
		if best.Unit == result.UnitTransactions {
			rate = fmt.Sprintf("%.1fk/s", best.Median/1e3)
		}
		parts := []string{shortID(best.ID) + " " + rate}
		for _, p := range of.rankingPairs() {
			if c, ok := r.compared.compare(o, of, p); ok && len(parts) <= mostSoFar {
				parts = append(parts, shortID(c.Numerator)+" "+signedPercent(c.Ratio, c.CI95))
			}
		}
		o.Progress.Note(fmt.Sprintf("  %-10s %s", w, strings.Join(parts, ", ")))
	}
}

func shortID(id string) string { return strings.TrimSuffix(id, "/pod-ip") }

func signedPercent(ratio float64, interval *[2]float64) string {
	text := fmt.Sprintf("%+.1f %%", 100*(ratio-1))
	if interval == nil {
		return text
	}
	return text + fmt.Sprintf(" ±%.1f", 100*math.Max(interval[1]-ratio, ratio-interval[0]))
}
