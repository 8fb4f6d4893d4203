// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"
)

// mostFreedom bounds degrees of freedom: beyond, Student's t differs from the normal distribution by 0.1 %.
const mostFreedom = 1000

// quantile returns the value that Student's t exceeds in size with a chance of alpha, by Newton's method. The
// p-value is convex: the method approaches from below, where the normal quantile lies.
func quantile(freedom int, alpha float64) float64 {
	freedom = min(freedom, mostFreedom)
	density := stats.TDist{V: float64(freedom)}.PDF
	t := 1.95
	for {
		step := (pValue(t, 1, freedom) - alpha) / (2 * density(t))
		if t += step; step < 1e-9 {
			return t
		}
	}
}

// pValue returns the two-sided p-value of Student's t = center/deviation.
func pValue(center, deviation float64, freedom int) float64 {
	if center == 0 {
		return 1
	}
	v := float64(min(freedom, mostFreedom))
	t := center / deviation
	return mathx.BetaInc(v/(v+t*t), v/2, 0.5)
}

// overRounds completes an estimate that has only rounds. It uses their median, the interval of its order statistics,
// and the p-value of the sign test. None assumes a distribution (W. Conover, Practical Nonparametric Statistics,
// 1999, chapter 3).
func (e Estimate) overRounds(points []point) (Estimate, float64) {
	e.Over, e.Units = Round, len(points)
	if len(points) == 0 {
		return e, 1
	}
	values, above, below := sortedValues(points), 0, 0
	for _, value := range values {
		if value > 0 {
			above++
		} else if value < 0 {
			below++
		}
	}
	e.Value = exp(middle(values))
	n := len(values)
	outside := max(0, n/2-int(math.Sqrt(float64(n)))-4) // ranks to leave out at each end
	for 2*atMost(outside, n) <= 0.05 {
		outside++
	}
	if outside == 0 { // under six rounds
		return e, 1
	}
	e.Interval = &[2]float64{exp(values[outside-1]), exp(values[n-outside])}
	return e, min(1, 2*atMost(n-max(above, below), n)) // a ratio of just 1 counts for both sides
}

func atMost(k, n int) float64 {
	switch {
	case k >= n:
		return 1
	case n > mostFreedom:
		return stats.StdNormal.CDF((float64(2*k+1) - float64(n)) / math.Sqrt(float64(n)))
	}
	return mathx.BetaInc(0.5, float64(n-k), float64(k+1))
}

// Holm returns p-values adjusted for the number of claims made together. If claims with an adjusted value under 0.05
// are taken as true, the chance that any of them is false is at most 5 % (S. Holm, Scandinavian Journal of
// Statistics 6, 1979). Further claims count as made too, with the least significant values. A value that is not a
// probability counts as 1.
func Holm(p []float64, further int) []float64 {
	order, adjusted := make([]int, len(p)), make([]float64, len(p))
	for i := range p {
		order[i], adjusted[i] = i, p[i]
		if !(p[i] >= 0 && p[i] <= 1) {
			adjusted[i] = 1
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(adjusted[i], adjusted[j]) })
	least := 0.0
	for rank, i := range order {
		least = max(least, min(1, adjusted[i]*float64(len(p)+further-rank)))
		adjusted[i] = least
	}
	return adjusted
}
