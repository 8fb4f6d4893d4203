// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"maps"
	"slices"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// comparisons caches the comparisons of a run until one of their rows has another
// round: the bootstrap takes a moment, and the result file is written often.
type comparisons map[comparisonKey]result.Comparison

// comparisonKey identifies a comparison.
type comparisonKey struct{ numerator, denominator result.Key }

// update returns the comparisons of all suites and workloads, each over the rounds that
// both rows have. Rows without samples, and failed rows, are not compared.
func (known comparisons) update(o Options, rows map[result.Key]*measuredRow) []result.Comparison {
	var out []result.Comparison
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			for _, p := range suite.Pairs {
				if c, ok := known.compare(o, comparisonOf(suite.Name, p, w), rows); ok {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// comparisonOf returns the comparison of a pair under a workload, without ratios.
func comparisonOf(suite string, p suites.Pair, w suites.Workload) result.Comparison {
	c := result.Comparison{
		Name: p.Name, Suite: suite, Workload: w.Name, Numerator: p.Numerator, Denominator: p.Denominator, AA: p.AA,
	}
	if w.Flows > 1 {
		c.Flows = w.Flows
	}
	return c
}

// compare completes a comparison; false if its rows have no common round.
func (known comparisons) compare(o Options, c result.Comparison, rows map[result.Key]*measuredRow) (result.Comparison, bool) {
	row := result.Row{Suite: c.Suite, ID: c.Numerator, Workload: c.Workload, Flows: c.Flows}
	key := comparisonKey{numerator: row.Key()}
	row.ID = c.Denominator
	key.denominator = row.Key()
	numerator, denominator := rows[key.numerator], rows[key.denominator]
	if numerator == nil || denominator == nil || numerator.done() || denominator.done() {
		return c, false
	}
	a, b := commonRounds(numerator, denominator)
	if len(a) == 0 {
		return c, false
	}
	if cached, ok := known[key]; ok && len(cached.Ratios) == len(a) {
		return cached, true
	}
	ratios := pairedRatios(a, b, o.Seed)
	c.Ratios, c.Ratio, c.CI95 = ratios.values, ratios.median, ratios.ci95
	known[key] = c
	return c, true
}

// commonRounds returns the figures of two rows in the rounds that both have.
func commonRounds(numerator, denominator *measuredRow) (a, b []float64) {
	for _, round := range slices.Sorted(maps.Keys(numerator.byRound)) {
		if y, ok := denominator.byRound[round]; ok && y > 0 {
			a, b = append(a, numerator.byRound[round]), append(b, y)
		}
	}
	return a, b
}
