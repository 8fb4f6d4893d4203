// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"strings"

	"mustang/internal/result"
)

// mostSoFar is the number of rows beside the best one that a line of interim figures has.
const mostSoFar = 4

// soFar shows the interim figures of a suite: a line for each workload, with the best row and those next to it.
func (r *run) soFar(rows []*measuredRow, instances int) {
	byKey, o := keyed(rows), r.options
	o.Progress.Note(fmt.Sprintf("so far, after %d networks:", instances))
	for _, w := range o.workloads(rows[0].spec.suite) {
		of := comparedRows{rows[0].spec.suite, w, byKey}
		ranked := of.ranked()
		if len(ranked) < 2 {
			continue
		}
		best, _ := byKey[ranked[0].Row(of.suite.Name, w).Key()].result()
		parts := []string{shortID(best.ID) + " " + rate(best)}
		for _, c := range r.compared.compareAll(o, of, of.rankingPairs()) {
			if len(parts) <= mostSoFar {
				parts = append(parts, shortID(c.Numerator)+" "+signedPercent(c.Ratio, c.CI95))
			}
		}
		o.Progress.Note(fmt.Sprintf("  %-10s %s", w, strings.Join(parts, ", ")))
	}
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

// signedPercent is the difference of a ratio from 1 with half of its interval.
func signedPercent(ratio float64, interval *[2]float64) string {
	text := fmt.Sprintf("%+.1f %%", 100*(ratio-1))
	if interval == nil {
		return text
	}
	return text + fmt.Sprintf(" ±%.1f", 100*math.Max(interval[1]-ratio, ratio-interval[0]))
}
