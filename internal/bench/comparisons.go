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

// comparisons caches comparisons until a row has another round: statistics take time, and results are written often.
type comparisons map[comparisonKey]comparison

// comparison is a comparison with its estimate, which is nil for rows that take no turns.
type comparison struct {
	result.Comparison
	estimate *stats.Comparison
	alpha    float64 // that it spends
}

type comparisonKey struct{ numerator, denominator result.Key }

// update returns the comparisons of all suites and workloads. Rows without samples, and failed rows, are not compared.
func (known comparisons) update(o Options, rows map[result.Key]*measuredRow) (out []result.Comparison) {
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			of := comparedRows{suite, w, rows}
			out = append(out, judged(known.compareAll(o, of), of.contests())...)
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

// compareAll compares the pairs of the suite, and where rows take turns each contender with the best one.
func (known comparisons) compareAll(o Options, of comparedRows) []comparison {
	pairs := of.suite.Pairs
	if o.sliced(of.suite) {
		pairs = slices.Concat(pairs, of.rankingPairs())
	}
	var out []comparison
	for _, p := range pairs {
		if c, ok := known.compare(o, of, p); ok {
			out = append(out, c)
		}
	}
	return out
}

// contends reports whether a path may be the best one of a suite. In a matrix only pod IPs contend, without the
// rules of the kernel's service proxies and without BIG TCP: the contenders differ in the link alone.
func contends(s suites.Suite, p suites.Path) bool {
	switch {
	case p.Baseline || p.Repeats != "":
		return false
	case s.Report.Layout != result.LayoutMatrix:
		return true
	}
	return p.Target == result.TargetPodIP && !p.Lab.BigTCP && (p.Lab.Via == lab.ViaNone || p.Lab.Via == lab.ViaEBPFTC)
}

func (r comparedRows) row(p suites.Path) *measuredRow {
	row := r.rows[p.Row(r.suite.Name, r.workload).Key()]
	if row == nil || row.done() || len(row.positions) == 0 {
		return nil
	}
	return row
}

// base returns a row that is measured twice, or nil: it takes turns until the end.
func (r comparedRows) base() *measuredRow {
	for _, p := range r.suite.Paths {
		if p.Repeats == "" || r.row(p) == nil {
			continue
		}
		p.ID = p.Repeats
		if of := r.row(p); of != nil {
			return of
		}
	}
	return nil
}

// ranked returns the contenders with a figure, the best first, by ratio to the base: resting rows have older figures.
func (r comparedRows) ranked() []suites.Path {
	value := map[string]float64{}
	var ranked []suites.Path
	base := r.base()
	for _, p := range r.suite.Paths {
		row := r.row(p)
		if !contends(r.suite, p) || row == nil {
			continue
		}
		value[p.ID] = stats.Summarize(row.samples()).Value
		if base != nil {
			value[p.ID] = row.against(base).Value
		}
		if !row.row.MoreIsBetter() {
			value[p.ID] *= -1
		}
		ranked = append(ranked, p)
	}
	slices.SortStableFunc(ranked, func(a, b suites.Path) int { return cmp.Compare(value[b.ID], value[a.ID]) })
	return ranked
}

func (r comparedRows) rankingPairs() (pairs []suites.Pair) {
	ranked := r.ranked()
	for i := 1; i < len(ranked); i++ {
		best, other := ranked[0].ID, ranked[i].ID
		pairs = append(pairs, suites.Pair{Name: other + " / " + best, Numerator: other, Denominator: best,
			Asks: result.AsksRank})
	}
	return pairs
}

// contests is the number of pairs among the contenders without the pairs of the best one. The samples choose the
// best row: a verdict on it is a verdict on all pairs.
func (r comparedRows) contests() int {
	n := len(r.ranked())
	return max(n*(n-1)/2-(n-1), 0)
}

var verdicts = map[int]string{-1: result.VerdictLower, 0: result.VerdictNone, 1: result.VerdictHigher}

// judged returns the comparisons of a workload, with verdicts if their rows take turns. Comparisons that the answer
// prints are corrected for each other, and for the further pairs that they stand for. So are others among themselves.
func judged(all []comparison, further int) (out []result.Comparison) {
	var at []int // index of a comparison of rows that take turns
	for i, c := range all {
		out = append(out, c.Comparison)
		if c.estimate != nil {
			at = append(at, i)
		}
	}
	for i, v := range verdictsAt(turned(all), stats.Significance, further) {
		out[at[i]].AdjustedP, out[at[i]].Verdict = v.P, verdicts[v.Difference]
	}
	return out
}

// unrepeated is a remark on a suite that compares kernel paths, but measured none twice: such rows failed or were
// deselected. It is empty otherwise.
func (known comparisons) unrepeated(suite string) string {
	note := ""
	for _, c := range known {
		switch {
		case c.Suite != suite || c.estimate == nil || c.Class != result.ClassKernel:
		case c.AA:
			return ""
		default:
			note = "No path was measured twice (A/A), so this run cannot show how much of a difference is noise."
		}
	}
	return note
}

// compare compares a pair over the rounds that both rows have; false without one.
func (known comparisons) compare(o Options, of comparedRows, p suites.Pair) (comparison, bool) {
	row := result.Row{Suite: of.suite.Name, ID: p.Numerator, Workload: of.workload.Name, Setup: of.workload.Setup}
	if of.workload.Flows > 1 {
		row.Flows = of.workload.Flows
	}
	key := comparisonKey{numerator: row.Key()}
	row.ID = p.Denominator
	key.denominator = row.Key()
	numerator, denominator := of.rows[key.numerator], of.rows[key.denominator]
	if numerator == nil || denominator == nil || numerator.done() || denominator.done() {
		return comparison{}, false
	}
	rounds := commonRounds(numerator, denominator)
	if len(rounds) == 0 {
		return comparison{}, false
	}
	alpha := o.alpha(numerator, denominator)
	if cached, ok := known[key]; ok && len(cached.Ratios) == len(rounds) && cached.alpha == alpha {
		cached.Name, cached.Asks = p.Name, p.Asks
		return cached, true
	}
	c := comparison{Comparison: result.Comparison{
		Name: p.Name, Suite: row.Suite, Workload: row.Workload, Flows: row.Flows, Setup: row.Setup,
		Numerator: p.Numerator, Denominator: p.Denominator, AA: p.AA, Asks: p.Asks,
	}}
	x, y := pairUp(numerator, denominator, rounds)
	for i := range x { // the machine's speed in a round affects both and cancels out
		c.Ratios = append(c.Ratios, x[i].Value/y[i].Value)
	}
	if len(numerator.positions) == 0 {
		c.Ratio, c.CI95 = summarize(c.Ratios)
	} else {
		estimate := stats.Compare(x, y).Spent(alpha)
		c.estimate, c.alpha = &estimate, alpha
		c.Ratio, c.P, c.Over = estimate.Value, estimate.P, estimate.Over.String()
		if estimate.Over > stats.Round { // the rounds of one network do not predict the next
			c.CI95 = ofEnough(estimate.Interval, len(rounds))
		}
		classes := result.Classes() // the noisier one counts
		c.Class = classes[max(slices.Index(classes, numerator.class()), slices.Index(classes, denominator.class()), 0)]
		c.Shares = result.Shares(estimate.Components.Shares())
		for i := range c.Ratios {
			c.Ratios[i] = rounded(c.Ratios[i])
		}
	}
	known[key] = c
	return c, true
}

func commonRounds(numerator, denominator *measuredRow) (rounds []int) {
	for _, round := range slices.Sorted(maps.Keys(numerator.byRound)) {
		if i, ok := denominator.byRound[round]; ok && denominator.row.Samples[i] > 0 {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// pairUp returns the samples of two rows in some rounds. If only one row's lab is rebuilt, both get the position of
// that row: their ratio varies with it.
func pairUp(numerator, denominator *measuredRow, rounds []int) (x, y []stats.Sample) {
	at := numerator
	if keeps(numerator.spec.path.Lab) {
		at = denominator
	}
	for _, round := range rounds {
		position := stats.Position{Round: round}
		if i := at.byRound[round]; i < len(at.positions) {
			position = at.positions[i]
		}
		x = append(x, stats.Sample{Position: position, Value: numerator.figure(round)})
		y = append(y, stats.Sample{Position: position, Value: denominator.figure(round)})
	}
	return x, y
}

// minInterval is the least number of samples for a 95 % interval. With fewer, even the range of all samples covers
// the median less often (1 - 2 * 0.5^5 = 0.9375).
const minInterval = 6

func ofEnough(interval *[2]float64, samples int) *[2]float64 {
	if samples < minInterval {
		return nil
	}
	return interval
}

// median returns the middle of the values, the mean of the middle two if their number is even, and 0 without values.
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
