// SPDX-License-Identifier: Apache-2.0

package stats

// Claim is a comparison that an answer reports.
type Claim struct {
	Comparison
	// Class names the kind of path, whose noise is alike: kernel, user-space switch, vm.
	// A comparison of two classes has that with more noise.
	Class string
	// AA marks a comparison of a path with itself, whose true ratio is 1.
	AA bool
}

// Verdict says whether a claim shows a difference.
type Verdict struct {
	// P is the p-value adjusted for the number of claims (see [Holm]).
	P float64
	// Floor is the largest deviation, as a share, that the A/A pairs of the class leave
	// possible: the far end of their intervals. It is -1 where the class has none.
	Floor float64
	// Difference is 1 if the ratio is above 1, -1 if below, 0 if none was found.
	Difference int
}

// String returns the sign of the difference, and ~ where none was found.
func (v Verdict) String() string {
	return [...]string{"-", "~", "+"}[v.Difference+1]
}

// Judge gives the verdicts on the claims of one answer. A difference needs three things:
//   - An adjusted p under 0.05: false differences are then in at most 5 % of the answers.
//   - An interval over more than rounds, since each connection is a draw of chance.
//   - The whole interval beyond the class's floor. It guards against what p cannot know, a
//     bias that is the same in every lab: the A/A pair shows how large one may be. In a
//     class without an A/A pair, p alone decides.
//
// A/A pairs are judged among themselves and without floor: a difference there means that
// the measurement is biased.
func Judge(claims []Claim) []Verdict {
	verdicts := make([]Verdict, len(claims))
	floors := map[string]float64{}
	p := map[bool][]float64{}
	for _, c := range claims {
		p[c.AA] = append(p[c.AA], c.P)
		if c.AA && c.Interval != nil {
			floors[c.Class] = max(floors[c.Class], c.Interval[1]-1, 1/c.Interval[0]-1)
		}
	}
	for _, aa := range []bool{false, true} {
		p[aa] = Holm(p[aa])
	}
	for i, c := range claims {
		v := Verdict{P: p[c.AA][0]}
		p[c.AA] = p[c.AA][1:]
		floor, known := floors[c.Class]
		switch {
		case c.AA:
			floor = 0
		case !known:
			floor = -1
		}
		v.Floor = floor
		if c.Interval != nil && c.Over > Round && v.P < 0.05 {
			v.Difference = beyond(*c.Interval, max(floor, 0))
		}
		verdicts[i] = v
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
