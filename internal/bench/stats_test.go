// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 7: {7}, 5: {9, 1}, 2: {3, 1, 2}, 3: {4, 1, 1000, 2}} {
		before := slices.Clone(values)
		if got := median(values); got != want || !slices.Equal(before, values) {
			t.Errorf("median(%v) = %g, want %g; it left %v", before, got, want, values)
		}
	}
}

// TestSummarize checks the intervals that a table of the binomial distribution
// gives: from the lo-th smallest to the hi-th smallest value, the narrowest that
// holds the median in 95 % of all cases, which may take one rank less on one
// side.
func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		n      int
		lo, hi float64
	}{
		{6, 1, 6},    // 96.9 %
		{8, 1, 7},    // 96.1 %
		{10, 2, 9},   // 97.9 %
		{20, 6, 15},  // 95.9 %
		{50, 18, 32}, // 95.1 %
	} {
		values := make([]float64, tt.n)
		for i := range values {
			values[i] = float64(tt.n - i)
		}
		center, ci := summarize(values)
		if center != float64(tt.n+1)/2 || ci == nil || ci[0] != tt.lo || ci[1] != tt.hi || values[0] != float64(tt.n) {
			t.Errorf("n %d: median %g, interval %v, want %g to %g", tt.n, center, ci, tt.lo, tt.hi)
		}
	}
	if _, ci := summarize(make([]float64, minInterval-1)); ci != nil {
		t.Errorf("interval %v of too few", ci)
	}
}

// TestRatios divides round by round; the outlier stays, and does not move the median.
func TestRatios(t *testing.T) {
	got := ratios([]float64{11, 24, 33, 44, 55, 1000, 7}, []float64{10, 20, 30, 40, 50, 100})
	for i, want := range []float64{1.1, 1.2, 1.1, 1.1, 1.1, 10} {
		if math.Abs(got[i]-want) > 1e-12 {
			t.Errorf("ratio %d is %g, want %g", i, got[i], want)
		}
	}
	if center, interval := summarize(got); math.Abs(center-1.1) > 1e-12 || interval == nil || len(got) != 6 {
		t.Errorf("%d ratios, median %g, interval %v", len(got), center, interval)
	}
}
