// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"

	"mustang/internal/result"
)

const leastNetworks = 3 // the least number of networks of each run for a t-test

const exactRanks = 20 // the largest sample for which ranks are counted rather than approximated

// The tests of rows, [delta.Test], and what they count, [delta.Over]. A row of a few networks has no test.
const welchT, overLabs, mannWhitney, overSamples = "welch-t", "labs", "mann-whitney", "samples"

// contrast compares a row of two runs, whose samples are not pairs: by Welch's t-test over the networks' mean
// logarithms. With fewer than three networks in either run, no difference is found. Samples without networks, or with
// networks that are all alike or have a sample of 0, take the Mann-Whitney test. nil if a ratio cannot be had.
func contrast(old, row result.Row) *delta {
	x, y := networks(old), networks(row)
	switch least := min(len(x), len(y)); {
	case least >= leastNetworks:
		if d := welch(x, y); d != nil {
			return d
		}
	case least > 0 && old.Median > 0:
		return &delta{Ratio: row.Median / old.Median, P: 1, Over: overLabs, Old: len(x), New: len(y)}
	}
	return ranks(old, row)
}

// networks returns the median logarithm of the samples of each network. It has -Inf of a median of 0; empty if the
// samples lack positions.
func networks(r result.Row) (centers []float64) {
	positions := r.SamplePositions()
	if len(positions) != len(r.Samples) {
		return nil
	}
	groups := map[int][]float64{}
	for i, v := range r.Samples {
		groups[positions[i].Lab] = append(groups[positions[i].Lab], math.Log(v))
	}
	for _, values := range groups {
		slices.Sort(values)
		centers = append(centers, stats.Sample{Xs: values, Sorted: true}.Quantile(0.5))
	}
	slices.Sort(centers) // the order of a map is random, and so would be the last digit of a sum
	return centers
}

// welch compares means by Welch's t-test (B. Welch, Biometrika 34, 1947); nil if the values do not vary.
func welch(x, y []float64) *delta {
	nx, ny := float64(len(x)), float64(len(y))
	vx, vy := stats.Variance(x)/nx, stats.Variance(y)/ny
	deviation := math.Sqrt(vx + vy)
	if !(deviation >= 1e-12) {
		return nil
	}
	freedom := min((vx+vy)*(vx+vy)/(vx*vx/(nx-1)+vy*vy/(ny-1)), 1000)
	center := stats.Mean(y) - stats.Mean(x)
	half := -stats.InvCDF(stats.TDist{V: freedom})(0.025) * deviation
	t := center / deviation
	return &delta{
		Ratio: math.Exp(center), CI95: &[2]float64{math.Exp(center - half), math.Exp(center + half)},
		P: mathx.BetaInc(freedom/(freedom+t*t), freedom/2, 0.5), Test: welchT, Over: overLabs, Old: len(x), New: len(y),
	}
}

// ranks compares samples by the Mann-Whitney test, with its estimate and interval: the median of all ratios of a new
// sample to an old one (J. Hodges and E. Lehmann, Annals of Mathematical Statistics 34, 1963). If a sample is 0, the
// ratio is the ratio of the medians, without interval; nil if the old median is 0.
func ranks(old, row result.Row) *delta {
	x, y := slices.Sorted(slices.Values(old.Samples)), slices.Sorted(slices.Values(row.Samples))
	d := &delta{P: 1, Test: mannWhitney, Over: overSamples, Old: len(x), New: len(y)}
	if x[0] != x[len(x)-1] || y[0] != y[len(y)-1] || x[0] != y[0] { // else there is nothing to rank
		test := benchmath.AssumeNothing.Compare(benchmath.NewSample(x, &benchmath.DefaultThresholds),
			benchmath.NewSample(y, &benchmath.DefaultThresholds))
		d.P = test.P
	}
	if x[0] <= 0 || y[0] <= 0 {
		if old.Median <= 0 {
			return nil
		}
		d.Ratio = row.Median / old.Median
		return d
	}
	for _, values := range [][]float64{x, y} {
		for i, v := range values {
			values[i] = math.Log(v)
		}
	}
	pairs := len(x) * len(y)
	d.Ratio = math.Exp((shift(x, y, (pairs+1)/2) + shift(x, y, pairs/2+1)) / 2)
	if out := outside(len(x), len(y)); out > 0 {
		d.CI95 = &[2]float64{math.Exp(shift(x, y, out)), math.Exp(shift(x, y, pairs+1-out))}
	}
	return d
}

// outside returns which differences, counted from each end, bound the interval; 0 if there are too few samples.
func outside(nx, ny int) int {
	if max(nx, ny) > exactRanks {
		n, m := float64(nx), float64(ny)
		return max(0, int(n*m/2-1.96*math.Sqrt(n*m*(n+m+1)/12)))
	}
	u := stats.UDist{N1: nx, N2: ny}
	out := 0
	for 2*u.CDF(float64(out)) <= 0.05 {
		out++
	}
	return out
}

// shift returns the difference of the given rank, from 1, among all y[j]-x[i], by bisection. x and y are sorted.
func shift(x, y []float64, rank int) float64 {
	low, high := y[0]-x[len(x)-1], y[len(y)-1]-x[0]
	for range 60 {
		center := low + (high-low)/2
		count, j := 0, 0
		for _, v := range x {
			for j < len(y) && y[j]-v <= center {
				j++
			}
			count += j
		}
		if count >= rank {
			high = center
		} else {
			low = center
		}
	}
	return high
}

// holm corrects p-values for their number: the chance that any below 0.05 is false is at
// most 5 % (S. Holm, Scandinavian Journal of Statistics 6, 1979).
func holm(deltas []*delta) {
	sorted := slices.Clone(deltas)
	slices.SortStableFunc(sorted, func(a, b *delta) int { return cmp.Compare(a.P, b.P) })
	least := 0.0
	for i, d := range sorted {
		if !(d.P >= 0) {
			d.P = 1
		}
		least = max(least, min(1, d.P*float64(len(sorted)-i)))
		d.P = least
	}
}
