// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// tenRows are the costs of a suite of ten rows.
var tenRows = Costs{Lab: 2 * time.Second, Round: 200 * time.Millisecond}

// TestPlanFollowsKaliberaAndJones compares with their formula where it gives a number that
// is not at a bound.
func TestPlanFollowsKaliberaAndJones(t *testing.T) {
	v := Components{Lab: 4e-6, Round: 4e-4}
	c := Costs{Lab: 90 * time.Second, Round: time.Second}
	got := Plan(v, c, 20*time.Hour)
	want := int(math.Sqrt(c.Lab.Seconds() / c.Round.Seconds() * math.Pi / 2 * v.Round / v.Lab)) // of a median
	if got.Rounds < want*3/4 || got.Rounds > want*5/4 {
		t.Errorf("got %v, the formula gives %d rounds", got, want)
	}
}

func TestPlanIsNarrowest(t *testing.T) {
	for _, v := range []noise{requests, streams, {process: 0.015, round: 0.01}, {lab: 0.01, round: 0.01}} {
		total := time.Minute
		best := Plan(v.variances(), tenRows, total)
		if best.Labs < claimLabs || best.rounds() < claimRounds || best.Time(tenRows) > total {
			t.Errorf("%v takes %v", best, best.Time(tenRows))
		}
		for rounds := claimRounds; rounds < 60; rounds++ {
			n := Counts{1, 1, 1, rounds}
			if n.Labs = int(total / n.Time(tenRows)); n.Labs < claimLabs {
				continue
			}
			if n.HalfWidth(v.variances()) < best.HalfWidth(v.variances()) {
				t.Errorf("%v: %v with %.3f %%, but %v with %.3f %%", v, best, 100*best.HalfWidth(v.variances()), n, 100*n.HalfWidth(v.variances()))
			}
		}
	}
}

func TestPlanInLittleTime(t *testing.T) {
	for total, labs := range map[time.Duration]int{
		22 * time.Second: 6, 20 * time.Second: 6, 13*time.Second + 200*time.Millisecond: 6, 10 * time.Second: 4, 7 * time.Second: 3,
		5 * time.Second: 1, 0: 1, -1: 1,
	} {
		n := Plan(requests.variances(), tenRows, total)
		if n.Labs != labs {
			t.Errorf("%v: %v", total, n)
		}
		if least := (Counts{1, 1, 1, 1}); n != least && n.Time(tenRows) > total {
			t.Errorf("%v: %v takes %v", total, n, n.Time(tenRows))
		}
	}
	for _, n := range []Counts{Plan(Components{}, tenRows, time.Minute), Plan(requests.variances(), Costs{}, time.Minute)} {
		if n.Labs < claimLabs || n.Rounds < 1 {
			t.Errorf("without variance or cost: %v", n)
		}
	}
}

// TestHalfWidthIsAsPlanned compares the half-width that a plan promises with that of
// simulated series.
func TestHalfWidthIsAsPlanned(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, v := range []noise{requests, streams, requests.with(0.05), streams.with(0.05), {process: 0.015, round: 0.01}} {
		n := Plan(v.variances(), tenRows, time.Minute)
		want, got := n.HalfWidth(v.variances()), 0.0
		const times = 100
		for range times {
			got += Compare(simulate(rng, n, v, 1)).HalfWidth() / times
		}
		t.Logf("%v: %v with %.3f %%, planned %.3f %%", v, n, 100*got, 100*want)
		if got < 0.8*want || got > 1.25*want {
			t.Errorf("%v: %v gives %.3f %%, planned were %.3f %%", v, n, 100*got, 100*want)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	for b.Loop() {
		Plan(requests.variances(), tenRows, time.Minute)
	}
}
