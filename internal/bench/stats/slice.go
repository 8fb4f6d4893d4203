// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"time"
)

// leastAverages is the least number of averages for an Allan variance to be of use.
const leastAverages = 16

// worthwhile is the share of the variance that longer turns must save.
const worthwhile = 0.2

// SliceLength returns how long the turns of a row should be, from the figures of slices
// that follow each other without gap on its path alone: the slice's length times a power
// of two, the length itself where longer turns gain nothing, or there are too few figures.
//
// Neighbouring turns differ by chance by their Allan variance (D. Allan, Proceedings of
// the IEEE 54, 1966; overlapping averages as in W. Riley, Handbook of Frequency Stability
// Analysis, NIST SP 1065, 2008). In a given time, turns of twice the length are half as
// many, so the length with the least product of both is best. For independent slices all
// lengths are alike, and drift speaks for short ones. Where a program in the path works
// in bursts, or carries work over to the next slice, the product falls until a turn holds
// whole bursts. An autocorrelation would not do: a positive one is what interleaving
// removes. Bursts need figures of 32 of them at least.
//
// The figures do not show what a turn loses because the turn before was another path's,
// such as sleeping threads and cold caches: that takes a lead-in that does not count.
func SliceLength(slices []float64, slice time.Duration) time.Duration {
	largest := 0.0
	for _, v := range slices {
		if usableSlice(v) {
			largest = max(largest, v)
		}
	}
	if largest == 0 {
		return slice
	}
	sums := make([]float64, 1, len(slices)+1) // running sums
	for _, v := range slices {
		if usableSlice(v) {
			sums = append(sums, sums[len(sums)-1]+v/largest)
		}
	}
	best := 1
	least, _ := allan(sums, 1)
	for n := 2; (len(sums)-1)/n >= leastAverages; n *= 2 {
		variance, deviation := allan(sums, n)
		if product := variance * float64(n); product*(1+worthwhile)*(1+3*deviation) < least {
			best, least = n, product
		}
	}
	return time.Duration(best) * slice
}

// usableSlice tells whether a figure is one: 0 is, where a path works in bursts.
func usableSlice(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// allan returns the Allan variance of averages over n neighbouring values, whose running
// sums are given, and its relative standard deviation if the values are independent.
func allan(sums []float64, n int) (variance, deviation float64) {
	count := len(sums) - 2*n
	if count < 1 {
		return 0, 0
	}
	for i := range count {
		d := (sums[i+2*n] - 2*sums[i+n] + sums[i]) / float64(n)
		variance += d * d / 2
	}
	return variance / float64(count), math.Sqrt(float64(n) / float64(len(sums)-1))
}
