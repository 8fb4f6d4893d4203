// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"testing"

	"mustang/internal/result"
)

// TestComparisons compares two rows as their rounds come in: each comparison is
// that of the rounds that both have, and is never an old one.
func TestComparisons(t *testing.T) {
	o := Options{Rounds: 8, Suites: []Suite{{
		Name: "x", workloads: []workload{tcpRR()},
		pairs: []pair{{name: "a / b", numerator: "a", denominator: "b"}, {numerator: "a", denominator: "none"}},
	}}}
	a, b := newTally(cell{"x", path{id: "a"}, tcpRR()}), newTally(cell{"x", path{id: "b"}, tcpRR()})
	measured := map[result.Key]*tally{a.row.Key(): a, b.row.Key(): b}
	known := comparisons{}
	if got := known.all(o, measured); len(got) > 0 {
		t.Errorf("comparisons of nothing: %+v", got)
	}
	both := 0
	for round := range o.Rounds {
		a.add(sample{figure: figure{value: float64(10 + round)}}, round)
		if round != 3 {
			b.add(sample{figure: figure{value: 5}}, round)
			both++
		}
		for range 2 { // asked once more, it is the same
			got := known.all(o, measured)
			if len(got) != 1 || len(got[0].Ratios) != both || math.Abs(got[0].Ratios[both-1]-float64(10+round-btoi(round == 3))/5) > 1e-12 {
				t.Fatalf("round %d: %+v, want one of %d rounds", round, got, both)
			}
			if known := got[0].CI95 != nil; known != (both >= minInterval) {
				t.Errorf("round %d: interval %v", round, got[0].CI95)
			}
		}
	}
	b.fail(ErrInterrupted)
	if got := known.all(o, measured); len(got) > 0 {
		t.Errorf("a failed row is compared: %+v", got)
	}
}

// btoi is 1 for true.
func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
