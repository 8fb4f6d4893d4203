// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"
)

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

// resamples is the number of samples that the bootstrap draws, which keeps the sampling
// error of an interval's ends well below its width.
const resamples = 4000

// median returns the middle of the values, the mean of the middle two where
// their number is even, and 0 where there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return middle(sorted, func(i int) int { return i })
}

// middle returns the median of the values at(0), at(1), ... in sorted order.
func middle(sorted []float64, at func(int) int) float64 {
	n := len(sorted)
	low, high := sorted[at((n-1)/2)], sorted[at(n/2)]
	return low + (high-low)/2
}

// summarize returns the median of the values and its 95 % confidence interval from
// order statistics, which assume no distribution (benchmath's AssumeNothing). The
// interval is nil for fewer than minInterval values. Outliers count.
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

// paired is a comparison of two rows within rounds.
type paired struct {
	values []float64   // one ratio per round
	median float64     // their median
	ci95   *[2]float64 // its interval, nil under six rounds
}

// pairedRatios divides a by b round by round; both hold one value per round, in the
// same order, and none of b is 0. The machine's speed in a round affects both and
// cancels out. The seed makes the interval repeatable.
func pairedRatios(a, b []float64, seed uint64) paired {
	p := paired{values: make([]float64, min(len(a), len(b)))}
	for i := range p.values {
		p.values[i] = a[i] / b[i]
	}
	p.median = median(p.values)
	if len(p.values) >= minInterval {
		p.ci95 = bootstrap(p.values, seed)
	}
	return p
}

// bootstrap returns the 95 % percentile interval of the median: the range of the
// medians of many samples of the same size, drawn from the values with replacement,
// without the share [tailShare] at each end (B. Efron and R. Tibshirani, An Introduction
// to the Bootstrap, 1993, chapter 13). The interval always contains the median itself.
func bootstrap(values []float64, seed uint64) *[2]float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	medians := make([]float64, resamples)
	drawn := make([]int, n) // number of draws of each value
	for i := range medians {
		clear(drawn)
		for range n {
			drawn[rng.IntN(n)]++
		}
		medians[i] = middle(sorted, func(rank int) int { return ranked(drawn, rank) })
	}
	slices.Sort(medians)
	tail := int(tailShare(n) * resamples)
	center := median(values)
	return &[2]float64{min(medians[tail], center), max(medians[resamples-1-tail], center)}
}

// tailShare returns the share of resamples to cut off at each end. It tends to 0.025 for
// many values. For few values that interval would be too narrow, and A/A comparisons
// would differ too often; so less is cut off, as in T. Hesterberg's expanded percentile
// interval (What Teachers Should Know About the Bootstrap, The American Statistician
// 69(4), 2015).
func tailShare(n int) float64 {
	quantile := stats.InvCDF(stats.TDist{V: float64(n - 1)})(0.025)
	return stats.StdNormal.CDF(quantile * math.Sqrt(float64(n)/float64(n-1)))
}

// ranked returns the index of the value at a rank, with each value repeated as often as
// it was drawn.
func ranked(drawn []int, rank int) int {
	for i, times := range drawn {
		if rank < times {
			return i
		}
		rank -= times
	}
	return len(drawn) - 1
}
