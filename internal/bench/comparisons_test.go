// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
)

// TestComparisonsCoverCommonRounds compares two rows as their rounds complete: each comparison covers
// the rounds that both have, and is never stale.
func TestComparisonsCoverCommonRounds(t *testing.T) {
	o := Options{Rounds: 8, Suites: []suites.Suite{{
		Name: "x", Workloads: []suites.Workload{{Name: load.TCPRR, Flows: 1}},
		Pairs: []suites.Pair{{Name: "a / b", Numerator: "a", Denominator: "b"}, {Numerator: "a", Denominator: "none"}},
	}}}
	row := func(id string) *measuredRow {
		return newRow(rowSpec{o.Suites[0], suites.Path{ID: id}, o.Suites[0].Workloads[0]})
	}
	a, b := row("a"), row("b")
	measured := map[result.Key]*measuredRow{a.row.Key(): a, b.row.Key(): b}
	known := comparisons{}
	if got := known.update(o, measured); len(got) > 0 {
		t.Errorf("comparisons of nothing: %+v", got)
	}
	both := 0
	for round := range o.Rounds {
		a.add(sample{figure: figure{value: float64(10 + round)}}, round)
		if round != 3 {
			b.add(sample{figure: figure{value: 5}}, round)
			both++
		}
		for range 2 { // the second one is cached
			got := known.update(o, measured)
			if len(got) != 1 || len(got[0].Ratios) != both || math.Abs(got[0].Ratios[both-1]-float64(10+round-btoi(round == 3))/5) > 1e-12 {
				t.Fatalf("round %d: %+v, want one of %d rounds", round, got, both)
			}
			if known := got[0].CI95 != nil; known != (both >= minInterval) {
				t.Errorf("round %d: interval %v", round, got[0].CI95)
			}
		}
	}
	b.fail(ErrInterrupted)
	if got := known.update(o, measured); len(got) > 0 {
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
