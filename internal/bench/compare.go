// SPDX-License-Identifier: Apache-2.0

package bench

import "mustang/internal/result"

// comparisons are what was compared so far. To draw an interval takes a moment,
// and the file is written often, so each is kept until it has another round.
type comparisons map[pairOf]result.Comparison

// pairOf is a pair of rows.
type pairOf struct {
	numerator, denominator string
	suite                  string
	workload               workload
}

// all sets the pairs of each suite against each other, each within the rounds that
// have both, for all workloads.
func (known comparisons) all(o Options, measured map[result.Key]*tally) []result.Comparison {
	var out []result.Comparison
	for _, suite := range o.Suites {
		out = append(out, known.of(o, suite, measured)...)
	}
	return out
}

// of sets the pairs of one suite against each other.
func (known comparisons) of(o Options, suite Suite, measured map[result.Key]*tally) []result.Comparison {
	var out []result.Comparison
	for _, workload := range o.workloads(suite) {
		for _, p := range suite.pairs {
			above := measured[result.Key{Suite: suite.Name, ID: p.numerator, Workload: workload.name, Flows: workload.flows}]
			below := measured[result.Key{Suite: suite.Name, ID: p.denominator, Workload: workload.name, Flows: workload.flows}]
			if above == nil || below == nil {
				continue
			}
			if above.row.Status != "" || below.row.Status != "" {
				continue // failed: its figures prove nothing
			}
			a, b := inBoth(o.Rounds, above, below)
			if len(a) == 0 {
				continue
			}
			key := pairOf{p.numerator, p.denominator, suite.Name, workload}
			c, ok := known[key]
			if !ok || len(c.Ratios) != len(a) {
				ratios := pairedRatios(a, b, o.Seed)
				c = result.Comparison{
					Name: p.name, Suite: suite.Name, Workload: workload.name, Numerator: p.numerator, Denominator: p.denominator, AA: p.aa,
					Ratios: ratios.values, Ratio: ratios.median, CI95: ratios.ci95,
				}
				if workload.flows > 1 {
					c.Flows = workload.flows
				}
				known[key] = c
			}
			out = append(out, c)
		}
	}
	return out
}

// inBoth returns the figures of two rows in the rounds that have both.
func inBoth(rounds int, above, below *tally) (a, b []float64) {
	for round := range rounds {
		x, okX := above.byRound[round]
		y, okY := below.byRound[round]
		if okX && okY && y > 0 {
			a, b = append(a, x), append(b, y)
		}
	}
	return a, b
}
