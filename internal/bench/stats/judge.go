// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"cmp"
	"slices"
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

// Holm returns p-values adjusted for the number of claims made together. If claims with a value under 0.05 are taken as
// true, the chance that any of them is false is at most 5 % (S. Holm, Scandinavian Journal of Statistics 6, 1979).
// Further claims count as made too, with the least significant values. A value that is not a probability counts as 1.
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
