// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// tenRows are the costs of a suite of ten rows.
var tenRows = Costs{
	Lab: 2 * time.Second, Process: 50 * time.Millisecond, Connection: 5 * time.Millisecond, Round: 200 * time.Millisecond,
}

// TestPlanFollowsKaliberaAndJones compares with their formula where it gives numbers that
// are not at a bound.
func TestPlanFollowsKaliberaAndJones(t *testing.T) {
	v := Components{Lab: 4e-6, Process: 4e-6, Connection: 4e-6, Round: 4e-4}
	c := Costs{Lab: 90 * time.Second, Process: 10 * time.Second, Connection: time.Second, Round: time.Second}
	got := Plan(v, c, 50*time.Hour)
	formula := func(costAbove, cost time.Duration, variance, above float64) int {
		return int(math.Round(math.Sqrt(costAbove.Seconds() / cost.Seconds() * variance / above)))
	}
	want := Counts{
		Processes:   formula(c.Lab, c.Process, v.Process, v.Lab),
		Connections: formula(c.Process, c.Connection, v.Connection, v.Process),
		Rounds:      formula(c.Connection, c.Round, v.Round, v.Connection),
	}
	// The search knows that the variance of a median is larger than that of a mean.
	near := func(got, want int) bool { return got-want <= 1+want/3 && want-got <= 1 }
	if !near(got.Processes, want.Processes) || !near(got.Connections, want.Connections) || !near(got.Rounds, want.Rounds) {
		t.Errorf("got %v, the formula gives %v", got, want)
	}
}

func TestPlanIsNarrowest(t *testing.T) {
	for _, v := range []noise{requests, streams, {process: 0.015, round: 0.01}, {lab: 0.01, round: 0.01}} {
		total := time.Minute
		best := Plan(v.variances(), tenRows, total)
		if best.Labs < claimLabs || best.rounds() < claimRounds || best.Time(tenRows) > total {
			t.Errorf("%v takes %v", best, best.Time(tenRows))
		}
		for processes := range 20 {
			for connections := range 4 {
				for rounds := range 10 {
					n := Counts{1, 1 + processes, 1 + connections, 1 + rounds}
					n.Labs = int(total / n.Time(tenRows))
					if n.Labs < claimLabs || n.rounds() < claimRounds {
						continue
					}
					if n.HalfWidth(v.variances()) < best.HalfWidth(v.variances()) {
						t.Errorf("%v: %v with %.3f %%, but %v with %.3f %%", v, best, 100*best.HalfWidth(v.variances()), n, 100*n.HalfWidth(v.variances()))
					}
				}
			}
		}
	}
}

func TestPlanInLittleTime(t *testing.T) {
	for _, tt := range []struct {
		total time.Duration
		labs  int
	}{
		{time.Hour, 700}, {20 * time.Second, 6}, {15 * time.Second, 6}, {10 * time.Second, 4}, {7 * time.Second, 3}, {5 * time.Second, 1}, {0, 1}, {-1, 1},
		{2500 * time.Millisecond, 1},
	} {
		n := Plan(requests.variances(), tenRows, tt.total)
		if tt.labs == 700 && n.Labs < tt.labs || tt.labs < 700 && n.Labs != tt.labs {
			t.Errorf("%v: %v", tt.total, n)
		}
		if least := (Counts{1, 1, 1, 1}); n != least && n.Time(tenRows) > tt.total {
			t.Errorf("%v: %v takes %v", tt.total, n, n.Time(tenRows))
		}
	}
	if n := Plan(requests.variances(), tenRows, 5*time.Second); n.Processes < 3 || math.IsInf(n.HalfWidth(requests.variances()), 0) {
		t.Errorf("5 s: %v", n)
	}
	for _, n := range []Counts{Plan(Components{}, tenRows, time.Minute), Plan(requests.variances(), Costs{}, time.Minute)} {
		if n.Labs < claimLabs || n.Processes < 1 || n.Connections < 1 || n.Rounds < 1 {
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
