// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"maps"
	"slices"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// comparisons caches the comparisons of a run until one of their rows has another
// round: the statistics take a moment, and the result file is written often.
type comparisons map[comparisonKey]comparison

// comparison is a comparison with its estimate, which is nil for rows that take no turns.
type comparison struct {
	result.Comparison
	estimate *stats.Comparison
}

// comparisonKey identifies a comparison.
type comparisonKey struct{ numerator, denominator result.Key }

// update returns the comparisons of all suites and workloads, each over the rounds that
// both rows have. Rows without samples, and failed rows, are not compared. Rows that take
// turns are also compared along their ranking: each with the best and with the next.
func (known comparisons) update(o Options, rows map[result.Key]*measuredRow) []result.Comparison {
	var out []result.Comparison
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			of := comparedRows{suite, w, rows}
			named := known.compareAll(o, of, suite.Pairs)
			out = append(out, judged(named, nil)...)
			if o.sliced(suite) {
				ranking := known.compareAll(o, of, of.rankingPairs())
				for i := range ranking {
					ranking[i].Ranking = true
				}
				out = append(out, judged(ranking, repeats(named))...)
			}
		}
	}
	for i := range out {
		if c := &out[i]; c.Over != "" && c.CI95 != nil { // long lists, which the samples have
			c.Ratios, c.Rounds = nil, len(c.Ratios)
		}
	}
	return out
}

// comparedRows are the rows of a suite under a workload, among others.
type comparedRows struct {
	suite    suites.Suite
	workload suites.Workload
	rows     map[result.Key]*measuredRow
}

// compareAll returns the comparisons of pairs of rows.
func (known comparisons) compareAll(o Options, of comparedRows, pairs []suites.Pair) []comparison {
	var out []comparison
	for _, p := range pairs {
		if c, ok := known.compare(o, comparisonOf(of.suite.Name, p, of.workload), of.rows); ok {
			out = append(out, c)
		}
	}
	return out
}

// rankingPairs returns the pairs of the best row of a suite and each other, and of
// neighbours in the ranking, without the pairs of the suite.
func (r comparedRows) rankingPairs() []suites.Pair {
	type figure struct {
		id    string
		value float64
	}
	var ranked []figure
	for _, p := range r.suite.Paths {
		row := r.rows[p.Row(r.suite.Name, r.workload).Key()]
		if p.Repeats == "" && row != nil && !row.done() && len(row.positions) > 0 {
			value := stats.Summarize(row.samples()).Value
			if !result.MoreIsBetter(row.row.Unit) {
				value = -value
			}
			ranked = append(ranked, figure{p.ID, value})
		}
	}
	slices.SortStableFunc(ranked, func(a, b figure) int { return cmp.Compare(b.value, a.value) })
	known := map[suites.Pair]bool{}
	for _, p := range r.suite.Pairs {
		known[suites.Pair{Numerator: p.Numerator, Denominator: p.Denominator}] = true
		known[suites.Pair{Numerator: p.Denominator, Denominator: p.Numerator}] = true
	}
	var pairs []suites.Pair
	add := func(numerator, denominator string) {
		p := suites.Pair{Numerator: numerator, Denominator: denominator}
		if !known[p] {
			known[p] = true
			pairs = append(pairs, p)
		}
	}
	for i := 1; i < len(ranked); i++ {
		add(ranked[0].id, ranked[i].id)
		add(ranked[i-1].id, ranked[i].id)
	}
	return pairs
}

// repeats returns the comparisons of a path with itself.
func repeats(all []comparison) []comparison {
	return slices.DeleteFunc(slices.Clone(all), func(c comparison) bool { return !c.AA })
}

// verdicts are those of [stats.Verdict.Difference].
var verdicts = map[int]string{-1: result.VerdictLower, 0: result.VerdictNone, 1: result.VerdictHigher}

// judged returns comparisons with the verdicts on those of rows that take turns, as
// claims of one answer. Further A/A pairs bound the noise.
func judged(all, repeats []comparison) []result.Comparison {
	var out []result.Comparison
	var claims []stats.Claim
	var at []int // index of a claim's comparison
	for i, c := range all {
		out = append(out, c.Comparison)
		if c.estimate != nil {
			claims, at = append(claims, stats.Claim{Comparison: *c.estimate, Class: c.Class, AA: c.AA}), append(at, i)
		}
	}
	for _, c := range repeats {
		if c.estimate != nil {
			claims = append(claims, stats.Claim{Comparison: *c.estimate, Class: c.Class, AA: true})
		}
	}
	for i, v := range stats.Judge(claims)[:len(at)] {
		out[at[i]].AdjustedP, out[at[i]].Verdict = v.P, verdicts[v.Difference]
	}
	return out
}

// unrepeated is a remark on a suite whose kernel paths are compared, and none was measured
// twice: such rows failed or were deselected. It is empty otherwise.
func (known comparisons) unrepeated(suite string) string {
	note := ""
	for _, c := range known {
		switch {
		case c.Suite != suite || c.estimate == nil || c.Class != result.ClassKernel:
		case c.AA:
			return ""
		case !c.AA:
			note = "No path in the kernel was measured twice (A/A): a bias that is the same in all rounds goes unseen."
		}
	}
	return note
}

// comparisonOf returns the comparison of a pair under a workload, without ratios.
func comparisonOf(suite string, p suites.Pair, w suites.Workload) result.Comparison {
	c := result.Comparison{
		Name: p.Name, Suite: suite, Workload: w.Name, Setup: w.Setup, Numerator: p.Numerator, Denominator: p.Denominator, AA: p.AA,
	}
	if w.Flows > 1 {
		c.Flows = w.Flows
	}
	return c
}

// compare completes a comparison; false if its rows have no common round.
func (known comparisons) compare(o Options, pair result.Comparison, rows map[result.Key]*measuredRow) (comparison, bool) {
	c := comparison{Comparison: pair}
	row := result.Row{Suite: c.Suite, ID: c.Numerator, Workload: c.Workload, Flows: c.Flows, Setup: c.Setup}
	key := comparisonKey{numerator: row.Key()}
	row.ID = c.Denominator
	key.denominator = row.Key()
	numerator, denominator := rows[key.numerator], rows[key.denominator]
	if numerator == nil || denominator == nil || numerator.done() || denominator.done() {
		return c, false
	}
	rounds := commonRounds(numerator, denominator)
	if len(rounds) == 0 {
		return c, false
	}
	if cached, ok := known[key]; ok && len(cached.Ratios) == len(rounds) {
		return cached, true
	}
	x, y := pairUp(numerator, denominator, rounds)
	if len(numerator.positions) == 0 {
		ratios := pairedRatios(values(x), values(y), o.Seed)
		c.Ratios, c.Ratio, c.CI95 = ratios.values, ratios.median, ratios.ci95
	} else {
		estimate := stats.Compare(x, y)
		c.estimate = &estimate
		c.Ratio, c.CI95, c.P, c.Over = estimate.Value, ofEnough(estimate.Interval, len(rounds)), estimate.P, estimate.Over.String()
		c.Class = result.NoisierClass(numerator.class(), denominator.class())
		c.Shares = result.Shares(estimate.Components.Shares())
		for i := range x {
			c.Ratios = append(c.Ratios, rounded(x[i].Value/y[i].Value))
		}
	}
	known[key] = c
	return c, true
}

// commonRounds returns the rounds that two rows have, in order.
func commonRounds(numerator, denominator *measuredRow) []int {
	var rounds []int
	for _, round := range slices.Sorted(maps.Keys(numerator.byRound)) {
		if i, ok := denominator.byRound[round]; ok && denominator.row.Samples[i] > 0 {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// pairUp returns the samples of two rows in some rounds. Both get the position of the
// row whose lab is rebuilt, if that of the other is not: their ratio varies with it.
func pairUp(numerator, denominator *measuredRow, rounds []int) (x, y []stats.Sample) {
	at := numerator
	if keeps(numerator.spec.path.Lab) {
		at = denominator
	}
	for _, round := range rounds {
		position := at.position(round)
		x = append(x, stats.Sample{Position: position, Value: numerator.figure(round)})
		y = append(y, stats.Sample{Position: position, Value: denominator.figure(round)})
	}
	return x, y
}

// values returns the figures of samples.
func values(samples []stats.Sample) []float64 {
	var out []float64
	for _, s := range samples {
		out = append(out, s.Value)
	}
	return out
}
