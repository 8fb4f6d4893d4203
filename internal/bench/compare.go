// SPDX-License-Identifier: Apache-2.0

package bench

import "mustang/internal/result"

// compare sets the pairs of the suite against each other, each within the rounds
// that have both, for all workloads.
func compare(o Options, measured map[string]*tally) []result.Comparison {
	var out []result.Comparison
	for _, workload := range workloads() {
		for _, p := range o.Suite.pairs {
			above, below := measured[p.numerator+" "+workload], measured[p.denominator+" "+workload]
			if above == nil || below == nil {
				continue
			}
			if above.row.Status != "" || below.row.Status != "" {
				continue // failed: its figures prove nothing
			}
			var a, b []float64
			for round := range o.Rounds {
				x, okX := above.byRound[round]
				y, okY := below.byRound[round]
				if okX && okY && y > 0 {
					a, b = append(a, x), append(b, y)
				}
			}
			if len(a) == 0 {
				continue
			}
			ratios := pairedRatios(a, b, o.Seed)
			out = append(out, result.Comparison{
				Name: p.name, Workload: workload, Numerator: p.numerator, Denominator: p.denominator, AA: p.aa,
				Ratios: ratios.values, Ratio: ratios.median, CI95: ratios.ci95,
			})
		}
	}
	return out
}
