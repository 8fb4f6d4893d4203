// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/perf/benchmath"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1}, 5},
		{[]float64{3, 1, 2}, 2},
		{[]float64{4, 1, 1000, 2}, 3},
	} {
		before := slices.Clone(tt.values)
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %g, want %g", tt.values, got, tt.want)
		}
		if !slices.Equal(before, tt.values) {
			t.Errorf("median changed its argument to %v", tt.values)
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
		if center != float64(tt.n+1)/2 {
			t.Errorf("n %d: median %g", tt.n, center)
		}
		if ci == nil || ci[0] != tt.lo || ci[1] != tt.hi {
			t.Errorf("n %d: interval %v, want %g to %g", tt.n, ci, tt.lo, tt.hi)
		}
		if values[0] != float64(tt.n) {
			t.Error("summarize sorted its argument")
		}
		covers := 0.0 // the chance of lo to hi-1 of n values below the median
		for below := int(tt.lo); below < int(tt.hi); below++ {
			covers += binomial(tt.n, below, 0.5)
		}
		if covers < 0.95 || covers > 0.98 {
			t.Errorf("n %d: the interval covers %.1f %%", tt.n, 100*covers)
		}
		theirs := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 0.95)
		if math.Abs(theirs.Center-center) > 1e-9 {
			t.Errorf("n %d: benchmath's median is %g, ours %g", tt.n, theirs.Center, center)
		}
	}
	for n := range minInterval {
		if _, ci := summarize(make([]float64, n)); ci != nil {
			t.Errorf("n %d: interval %v", n, ci)
		}
	}
}

// binomial is the probability of k successes in n trials.
func binomial(n, k int, p float64) float64 {
	lgamma := func(x int) float64 {
		v, _ := math.Lgamma(float64(x))
		return v
	}
	return math.Exp(lgamma(n+1)-lgamma(k+1)-lgamma(n-k+1)) * math.Pow(p, float64(k)) * math.Pow(1-p, float64(n-k))
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

// simulate returns two rows measured in rounds on a machine that drifts: each
// round has a speed of its own that both share, and each sample has skewed
// noise of its own. The first is ratio times as fast.
func simulate(rng *rand.Rand, rounds int, ratio float64) (a, b []float64) {
	speed := 100.0
	for range rounds {
		speed *= math.Exp(0.1 * rng.NormFloat64())
		noise := func() float64 { return math.Exp(0.02 * rng.NormFloat64()) }
		slow := func() float64 {
			if rng.Float64() < 0.1 {
				return 0.8 // somebody else had the CPU
			}
			return 1
		}
		a = append(a, ratio*speed*noise()*slow())
		b = append(b, speed*noise()*slow())
	}
	return a, b
}

// TestIntervalsCoverTrueRatio simulates many comparisons. The interval must hold the true
// ratio about 95 times of 100, and the same thing measured twice (A/A) must
// differ by no more than that allows. With few rounds an interval can only end
// at a few places, so the share jumps from one number of rounds to the next; 11
// is the worst below 30.
func TestIntervalsCoverTrueRatio(t *testing.T) {
	for _, tt := range []struct {
		rounds    int
		low, high float64
	}{
		{6, 0.94, 0.99}, {10, 0.95, 1}, {11, 0.95, 1}, {20, 0.94, 0.99},
	} {
		t.Run(fmt.Sprintf("rounds %d", tt.rounds), func(t *testing.T) {
			const simulations = 1000
			rng := rand.New(rand.NewPCG(42, uint64(tt.rounds)))
			covered, falseDifferences := 0, 0
			for range simulations {
				a, b := simulate(rng, tt.rounds, 0.9)
				if _, ci := summarize(ratios(a, b)); ci[0] <= 0.9 && 0.9 <= ci[1] {
					covered++
				}
				a, b = simulate(rng, tt.rounds, 1)
				if _, ci := summarize(ratios(a, b)); ci[0] > 1 || ci[1] < 1 {
					falseDifferences++
				}
			}
			t.Logf("covered %d, false differences %d of %d", covered, falseDifferences, simulations)
			if c := float64(covered) / simulations; c < tt.low || c > tt.high {
				t.Errorf("the interval holds the true ratio in %.1f %%", 100*c)
			}
			if f := float64(falseDifferences) / simulations; f > 1-tt.low {
				t.Errorf("false differences in %.1f %% of A/A comparisons", 100*f)
			}
		})
	}
}

// TestPairingFindsMoreThanUnpaired checks that the pairing finds a difference that the machine's drift
// hides from a test of unpaired samples.
func TestPairingFindsMoreThanUnpaired(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	const simulations = 100
	foundPaired, foundUnpaired := 0, 0
	for range simulations {
		a, b := simulate(rng, 10, 0.9)
		if _, ci := summarize(ratios(a, b)); ci[1] < 1 {
			foundPaired++
		}
		x, y := benchmath.NewSample(a, &benchmath.DefaultThresholds), benchmath.NewSample(b, &benchmath.DefaultThresholds)
		if benchmath.AssumeNothing.Compare(x, y).P < 0.05 {
			foundUnpaired++
		}
	}
	t.Logf("10 %% less was found %d times paired, %d times unpaired, of %d", foundPaired, foundUnpaired, simulations)
	if foundPaired < 60 || foundUnpaired > foundPaired/2 {
		t.Error("paired comparisons find too little, or unpaired ones too much")
	}
}
