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

const leastUnits = 3 // the least number of labs, processes or connections of each run for a t-test

const exactRanks = 20 // the largest sample for which ranks are counted rather than approximated

// mannWhitney is the test of samples, [delta.Test], and overSamples its level.
const mannWhitney, overSamples = "mann-whitney", "samples"

// levels are the levels of Welch's test, which uses the first with enough units in both rows.
var levels = []string{"labs", "processes", "connections"}

// contrast compares a row of two runs, whose samples are not pairs: by Welch's t-test over the labs' mean logarithms if
// both have three labs, else over processes or connections, else by the Mann-Whitney test over the samples.
func contrast(old, row result.Row) *delta {
	x, y := units(old), units(row)
	for level, over := range levels {
		if len(x[level]) >= leastUnits && len(y[level]) >= leastUnits {
			if d := welch(x[level], y[level]); d != nil {
				d.Over = over
				return d
			}
		}
	}
	return ranks(old, row)
}

// units returns the mean logarithms of labs (of their processes), processes (of their connections) and connections (the
// median of their rounds). None if the samples lack positions, or one is not positive.
func units(r result.Row) (levels [3][]float64) {
	positions := r.SamplePositions()
	if len(positions) != len(r.Samples) {
		return levels
	}
	var groups [3]map[result.Position][]float64
	for i := range groups {
		groups[i] = map[result.Position][]float64{}
	}
	for i, v := range r.Samples {
		if v <= 0 {
			return levels
		}
		at := positions[i]
		at.Round = 0
		groups[2][at] = append(groups[2][at], math.Log(v))
	}
	for level := 2; level >= 0; level-- {
		for at, values := range groups[level] {
			slices.Sort(values) // the order of a map is random, and so would be the last digit of a sum
			center := stats.Mean(values)
			switch level {
			case 2:
				center = stats.Sample{Xs: values, Sorted: true}.Quantile(0.5)
				at.Connection = 0
			case 1:
				at.Process = 0
			}
			levels[level] = append(levels[level], center)
			if level > 0 {
				groups[level-1][at] = append(groups[level-1][at], center)
			}
		}
		slices.Sort(levels[level])
	}
	return levels
}

// welch compares means by Welch's t-test (B. Welch, Biometrika 34, 1947); nil if the values do not vary.
func welch(x, y []float64) *delta {
	nx, ny := float64(len(x)), float64(len(y))
	vx, vy := stats.Variance(x)/nx, stats.Variance(y)/ny
	deviation := math.Sqrt(vx + vy)
	if deviation < 1e-12 {
		return nil
	}
	freedom := min((vx+vy)*(vx+vy)/(vx*vx/(nx-1)+vy*vy/(ny-1)), 1000)
	center := stats.Mean(y) - stats.Mean(x)
	half := -stats.InvCDF(stats.TDist{V: freedom})(0.025) * deviation
	t := center / deviation
	return &delta{
		Ratio: math.Exp(center), CI95: &[2]float64{math.Exp(center - half), math.Exp(center + half)},
		P: mathx.BetaInc(freedom/(freedom+t*t), freedom/2, 0.5), Test: "welch-t", Old: len(x), New: len(y),
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
