// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/result"
)

// A run of a given time looks at its data after each quarter of that time but the last. Rows whose
// questions are answered get no more turns, and workloads with wide intervals get more time. Stopping
// at a look narrows intervals falsely, so each look spends a part of the 5 % of intervals that may
// miss (see [stats.Comparison.Spent]), and the end the rest.
const (
	looks     = 3
	lookAlpha = 0.01 / looks
	endAlpha  = stats.Significance - looks*lookAlpha
	// lookInstances is the least number of instances before a look: Student's t of fewer is wide.
	lookInstances = 6
)

// A question is answered when the ratio's interval excludes 1 and is narrow, at most narrowEnough or a fifth of the difference
// to each side, or when it lies within equalWithin of 1.
const (
	narrowEnough = 0.02
	narrowPart   = 0.2
	equalWithin  = 0.01
)

// races reports whether the run looks at its data before its end.
func (o Options) races() bool { return o.Rounds == 0 && o.Until == 0 }

// alpha is the part of the significance that a comparison spends: a look's where a row has no more turns since then.
func (o Options) alpha(numerator, denominator *measuredRow) float64 {
	switch {
	case numerator.answered || denominator.answered:
		return lookAlpha
	case o.races():
		return endAlpha
	}
	return stats.Significance
}

// due reports whether it is time for a look.
func (b *budget) due() bool {
	spent := time.Since(b.started)
	if !b.options.races() || b.looks >= looks || b.done < lookInstances || spent < b.options.Time*time.Duration(b.looks+1)/(looks+1) {
		return false
	}
	for b.looks++; b.looks < looks && spent >= b.options.Time*time.Duration(b.looks+1)/(looks+1); b.looks++ {
		continue
	}
	return true
}

// look marks the rows whose questions are all answered, and weighs the workloads by their widest
// interval that is open: the time that narrows it is as the square of its width.
func (r *run) look(rows []*measuredRow, b *budget) {
	byKey := map[result.Key]*measuredRow{}
	for _, row := range rows {
		byKey[row.row.Key()] = row
	}
	open, asked, widest := map[*measuredRow]bool{}, map[*measuredRow]bool{}, map[string]float64{}
	for _, c := range r.compared.all(r.options, byKey) {
		if c.estimate == nil || c.Asks == "" && !c.AA && c.isPartOfMatrix(rows) {
			continue
		}
		row := result.Row{Suite: c.Suite, ID: c.Numerator, Workload: c.Workload, Flows: c.Flows, Setup: c.Setup}
		numerator := byKey[row.Key()]
		row.ID = c.Denominator
		denominator := byKey[row.Key()]
		asked[numerator], asked[denominator] = true, true
		if c.AA || !answered(c.estimate.Spent(lookAlpha)) {
			open[numerator], open[denominator] = true, true
			workload := numerator.spec.workload.String()
			widest[workload] = max(widest[workload], min(c.estimate.HalfWidth(), 1))
		}
	}
	for _, row := range rows {
		row.answered = row.answered || asked[row] && !open[row]
	}
	b.weights = weigh(widest)
}

// isPartOfMatrix reports whether a suite's answer consists of the comparisons that ask for it.
func (c comparison) isPartOfMatrix(rows []*measuredRow) bool {
	return rows[0].spec.suite.Report.Layout == result.LayoutMatrix
}

// answered reports whether a comparison answers its question.
func answered(c stats.Comparison) bool {
	if c.Interval == nil || c.Over == stats.Round {
		return false
	}
	low, high := c.Interval[0], c.Interval[1]
	if low > 1-equalWithin && high < 1+equalWithin {
		return true
	}
	effect := c.Value - 1
	if effect < 0 {
		effect = -effect
	}
	return (low > 1 || high < 1) && c.HalfWidth() <= max(narrowEnough, narrowPart*effect)
}

// Bounds of a workload's weight, so that none starves.
const leastWeight, mostWeight = 0.5, 2

// weigh returns the weights of workloads by their widest intervals.
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
