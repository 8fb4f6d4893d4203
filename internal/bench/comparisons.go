// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/result"
)

// comparison is a comparison with its estimate, which is nil for rows that take no turns.
type comparison struct {
	result.Comparison
	estimate *stats.Comparison
}

// comparedRows are the rows of a suite under a workload, among others.
type comparedRows struct {
	suite    suites.Suite
	workload suites.Workload
	rows     map[result.Key]*measuredRow
}

// comparisons compares the rows of all suites and workloads, each over the rounds that both rows have.
func (o Options) comparisons(rows map[result.Key]*measuredRow) []result.Comparison {
	var out []result.Comparison
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			for _, c := range (comparedRows{suite, w, rows}).compareAll(o.sliced(suite)) {
				if c.Over != "" && c.CI95 != nil { // the samples have these long lists
					c.Ratios, c.Rounds = nil, len(c.Ratios)
				}
				out = append(out, c.Comparison)
			}
		}
	}
	return out
}

var verdicts = map[int]string{-1: result.VerdictLower, 0: result.VerdictNone, 1: result.VerdictHigher}

// compareAll compares the pairs of the suite, and if rows take turns each contender with the best one. Comparisons of
// rows that take turns get a verdict, corrected for the others.
func (r comparedRows) compareAll(sliced bool) []comparison {
	pairs, further := r.suite.Pairs, 0
	if sliced {
		ranking := r.rankingPairs()
		pairs = slices.Concat(pairs, ranking)
		// The samples choose the best row, so a verdict on it is one on all pairs of contenders.
		further = len(ranking) * max(len(ranking)-1, 0) / 2
	}
	var out []comparison
	var claims []stats.Claim
	for _, p := range pairs {
		c, ok := r.compare(p)
		if !ok {
			continue
		}
		if out = append(out, c); c.estimate != nil {
			claims = append(claims, stats.Claim{Comparison: *c.estimate, Class: c.Class, AA: c.AA, Asked: c.Asks != ""})
		}
	}
	judged := stats.Judge(claims, further)
	for i := range out {
		if out[i].estimate != nil {
			out[i].AdjustedP, out[i].Verdict = judged[0].P, verdicts[judged[0].Difference]
			judged = judged[1:]
		}
	}
	return out
}

// contends reports whether a path may be the best one of a suite. In a matrix that is a pod IP without the rules of a
// service proxy of the kernel and without BIG TCP: what is compared differs in the link alone.
func contends(s suites.Suite, p suites.Path) bool {
	switch {
	case p.Baseline || p.Repeats != "":
		return false
	case s.Report.Layout != result.LayoutMatrix:
		return true
	}
	return p.Target == result.TargetPodIP && !p.Lab.BigTCP && (p.Lab.Via == lab.ViaNone || p.Lab.Via == lab.ViaEBPFTC)
}

func (r comparedRows) row(id string) *measuredRow {
	key := result.Row{Suite: r.suite.Name, ID: id, Workload: r.workload.Name, Setup: r.workload.Setup}
	if r.workload.Flows > 1 {
		key.Flows = r.workload.Flows
	}
	if row := r.rows[key.Key()]; row != nil && !row.done() {
		return row
	}
	return nil
}

// ranked returns the contenders with a figure, the best first.
func (r comparedRows) ranked() []*measuredRow {
	value := map[*measuredRow]float64{}
	var ranked []*measuredRow
	for _, p := range r.suite.Paths {
		row := r.row(p.ID)
		if !contends(r.suite, p) || row == nil || len(row.positions) == 0 {
			continue
		}
		value[row] = stats.Summarize(row.samples()).Value
		if !row.row.MoreIsBetter() {
			value[row] *= -1
		}
		ranked = append(ranked, row)
	}
	slices.SortStableFunc(ranked, func(a, b *measuredRow) int { return cmp.Compare(value[b], value[a]) })
	return ranked
}

func (r comparedRows) rankingPairs() []suites.Pair {
	var pairs []suites.Pair
	ranked := r.ranked()
	for i := 1; i < len(ranked); i++ {
		best, other := ranked[0].row.ID, ranked[i].row.ID
		pairs = append(pairs, suites.Pair{Name: other + " / " + best, Numerator: other, Denominator: best,
			Asks: result.AsksRank})
	}
	return pairs
}

// unrepeated is a remark on a suite whose kernel paths are compared, and none was measured
// twice: such rows failed or were deselected. It is empty otherwise.
func unrepeated(all []result.Comparison, suite string) string {
	kernel := slices.DeleteFunc(slices.Clone(all), func(c result.Comparison) bool {
		return c.Suite != suite || c.Class != result.ClassKernel
	})
	if len(kernel) == 0 || slices.ContainsFunc(kernel, func(c result.Comparison) bool { return c.AA }) {
		return ""
	}
	return "No path in the kernel was measured twice (A/A): a bias that is the same in all rounds goes unseen."
}

// compare compares the rows of a pair over the rounds that both have, if they have any.
func (r comparedRows) compare(p suites.Pair) (c comparison, ok bool) {
	numerator, denominator := r.row(p.Numerator), r.row(p.Denominator)
	if numerator == nil || denominator == nil {
		return c, false
	}
	x, y := pairUp(numerator, denominator)
	if len(x) == 0 {
		return c, false
	}
	row := numerator.row
	c.Comparison = result.Comparison{
		Name: p.Name, Suite: row.Suite, Workload: row.Workload, Flows: row.Flows, Setup: row.Setup,
		Numerator: p.Numerator, Denominator: p.Denominator, AA: p.AA, Asks: p.Asks,
	}
	for i := range x { // the machine's speed in a round affects both and cancels out
		c.Ratios = append(c.Ratios, x[i].Value/y[i].Value)
	}
	if len(numerator.positions) == 0 {
		c.Ratio, c.CI95 = summarize(c.Ratios)
		return c, true
	}
	estimate := stats.Compare(x, y)
	c.estimate = &estimate
	c.Ratio, c.P, c.Over = estimate.Value, estimate.P, estimate.Over.String()
	if estimate.Over > stats.Round { // the rounds of one network say nothing of the next
		c.CI95 = ofEnough(estimate.Interval, len(x))
	}
	c.SetClass(numerator.class(), denominator.class())
	c.Shares = result.Shares(estimate.Components.Shares())
	for i := range c.Ratios {
		c.Ratios[i] = rounded(c.Ratios[i])
	}
	return c, true
}

// pairUp returns the samples of two rows in the rounds that both have. Both get the position of the row whose lab is
// rebuilt, if that of the other is not: their ratio varies with it.
func pairUp(numerator, denominator *measuredRow) (x, y []stats.Sample) {
	at := numerator
	if keeps(numerator.spec.path.Lab) {
		at = denominator
	}
	for _, round := range slices.Sorted(maps.Keys(numerator.byRound)) {
		j, ok := denominator.byRound[round]
		if !ok || denominator.row.Samples[j] <= 0 {
			continue
		}
		position := at.position(round)
		x = append(x, stats.Sample{Position: position, Value: numerator.row.Samples[numerator.byRound[round]]})
		y = append(y, stats.Sample{Position: position, Value: denominator.row.Samples[j]})
	}
	return x, y
}

// minInterval is the least number of samples for a 95 % interval: with fewer, not even
// the range of all samples covers the median that often (1 - 2 * 0.5^5 = 0.9375).
const minInterval = 6

// ofEnough returns the interval of some samples, nil if they are too few.
func ofEnough(interval *[2]float64, samples int) *[2]float64 {
	if samples < minInterval {
		return nil
	}
	return interval
}

// median returns the middle of the values, the mean of the middle two if their number is even, and 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	low, high := sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]
	return low + (high-low)/2
}

// summarize returns the median of the values and its 95 % confidence interval from order statistics, which assume no
// distribution (benchmath's AssumeNothing). The interval is nil for fewer than minInterval values. Outliers count.
func summarize(values []float64) (float64, *[2]float64) {
	center := median(values)
	if len(values) < minInterval {
		return center, nil
	}
	sample := benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds)
	summary := benchmath.AssumeNothing.Summary(sample, 0.95)
	if math.IsInf(summary.Lo, 0) || math.IsInf(summary.Hi, 0) {
		return center, nil
	}
	return center, &[2]float64{min(summary.Lo, center), max(summary.Hi, center)}
}
