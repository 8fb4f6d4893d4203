// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	"github.com/aclements/go-moremath/stats"
)

// Claim is a comparison that a run reports.
type Claim struct {
	Comparison
	// Class names the kind of path: kernel, user-space switch, vm. Noise is alike in a class. A comparison of two
	// classes has the class with more noise.
	Class string
	AA    bool // marks a comparison of a path with itself, whose true ratio is 1
	Asked bool // marks a comparison that the answer prints
}

// Verdict is whether a claim shows a difference.
type Verdict struct {
	P float64 // the p-value adjusted for the number of claims of its family (see [Holm])
	// Floor is the bias, as a share, that an A/A pair of the class has proved: the near end of its interval. It is 0
	// where the interval holds 1, and -1 if the class lacks an A/A pair.
	Floor      float64
	Difference int // 1 if the ratio is above 1, -1 if below, 0 if none was found
}

const biasSignificance = 0.01 // the p-value below which an A/A pair shows a bias

// Judge gives the verdicts on the claims of one workload. A difference needs three things:
//   - An adjusted p under [Significance]. The claims that the answer prints are one family, which includes
//     further claims that are not listed. The other claims are a second family, and the A/A pairs a third.
//     In each family at most 5 % of the runs then have a false difference, for each workload.
//   - An interval over more than rounds, since each connection is a random draw.
//   - The whole interval beyond the class's floor, a bias that p leaves out. Only a bias that an A/A pair
//     has proved counts: the width of its interval is noise, which the claim's own interval covers.
//
// A/A pairs are judged without floor, and their adjusted p has to be under 0.01. A difference there means that the
// measurement is biased, and every workload of every run has such a test.
func Judge(claims []Claim, further int) []Verdict {
	verdicts := make([]Verdict, len(claims))
	floors := map[string]float64{}
	type family struct{ aa, asked bool }
	members := map[family][]int{}
	for i, c := range claims {
		of := family{c.AA, c.Asked && !c.AA}
		members[of] = append(members[of], i)
		if c.AA && c.Interval != nil {
			floors[c.Class] = max(floors[c.Class], c.Interval[0]-1, 1/c.Interval[1]-1)
		}
	}
	for of, at := range members {
		var p []float64
		for _, i := range at {
			p = append(p, claims[i].P)
		}
		unlisted := 0
		if of.asked {
			unlisted = further
		}
		for j, adjusted := range Holm(p, unlisted) {
			verdicts[at[j]].P = adjusted
		}
	}
	for i, c := range claims {
		v := &verdicts[i]
		significance := biasSignificance
		if !c.AA {
			significance, v.Floor = Significance, -1
			if floor, known := floors[c.Class]; known {
				v.Floor = floor
			}
		}
		if c.Interval != nil && c.Over > Round && v.P < significance {
			v.Difference = beyond(*c.Interval, max(v.Floor, 0))
		}
	}
	return verdicts
}

// beyond returns on which side of 1 the interval lies, by more than the floor; else 0.
func beyond(interval [2]float64, floor float64) int {
	switch {
	case interval[0] > 1+floor:
		return 1
	case interval[1] < 1/(1+floor):
		return -1
	}
	return 0
}

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
