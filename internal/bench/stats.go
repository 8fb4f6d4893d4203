// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"

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

// median returns the middle of the values, the mean of the middle two where
// their number is even, and 0 where there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	low, high := sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]
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

// ratios divides a by b round by round; both hold one value per round, in the same order, and none
// of b is 0. The machine's speed in a round affects both and cancels out.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}
