// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"strings"
	"time"

	"mustang/internal/result"
)

const (
	// looks is the number of times at which a run of a given time looks at its data: after each quarter but the last.
	looks = 3
	// lookInstances is the least number of instances before workloads are weighed: Student's t of fewer is wide.
	lookInstances = 6
	// leastWeight and mostWeight bound a workload's weight, so that none starves.
	leastWeight, mostWeight = 0.5, 2
	// mostSoFar is the number of rows beside the best one that a line of interim figures has.
	mostSoFar = 4
)

// quarter reports whether a further quarter of a given time has passed.
func (b *budget) quarter() bool {
	o, before := b.options, b.looks
	if o.Rounds > 0 || o.Until > 0 {
		return false
	}
	b.looks = max(before, min(looks, int(time.Since(b.started)*(looks+1)/o.Time)))
	return b.looks > before
}

// look shows the interim figures of a suite, a line for each workload with the best row and those next to it. It
// returns the half-width of the widest interval that answers a question, by workload.
func (r *run) look(rows []*measuredRow, instances int) map[string]float64 {
	suite, byKey, widest := rows[0].spec.suite, map[result.Key]*measuredRow{}, map[string]float64{}
	for _, row := range rows {
		byKey[row.row.Key()] = row
	}
	r.options.Progress.Note(fmt.Sprintf("so far, after %d networks:", instances))
	for _, w := range r.options.workloads(suite) {
		of := comparedRows{suite, w, byKey}
		ranked, best := of.ranked(), ""
		if len(ranked) > 1 {
			first, _ := ranked[0].result()
			best = shortID(first.ID) + " " + rate(first)
		}
		var parts []string
		for _, c := range of.compareAll(true) {
			if c.Asks == result.AsksRank && len(parts) < mostSoFar {
				parts = append(parts, shortID(c.Numerator)+" "+signedPercent(c.Ratio, c.CI95))
			}
			if !c.AA && (c.Asks != "" || suite.Report.Layout != result.LayoutMatrix) && c.estimate != nil {
				widest[w.String()] = max(widest[w.String()], min(c.estimate.HalfWidth(), 1))
			}
		}
		if best != "" {
			r.options.Progress.Note(fmt.Sprintf("  %-10s %s", w, strings.Join(append([]string{best}, parts...), ", ")))
		}
	}
	return widest
}

// weigh returns the weights of workloads by their widest intervals: the time needed to narrow an interval grows as the
// square of its width.
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

// rate is the figure of a row with few digits.
func rate(row result.Row) string {
	if row.Unit == result.UnitTransactions {
		return fmt.Sprintf("%.1fk/s", row.Median/1e3)
	}
	return fmt.Sprintf("%.1f %s", row.Median, row.Unit)
}

// shortID is a row's ID without the kind of its address.
func shortID(id string) string { return strings.TrimSuffix(id, "/pod-ip") }

func signedPercent(ratio float64, interval *[2]float64) string {
	text := fmt.Sprintf("%+.1f %%", 100*(ratio-1))
	if interval == nil {
		return text
	}
	return text + fmt.Sprintf(" ±%.1f", 100*math.Max(interval[1]-ratio, ratio-interval[0]))
}
