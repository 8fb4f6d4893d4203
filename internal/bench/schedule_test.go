// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"
	"time"
)

func TestOrder(t *testing.T) {
	const rows, rounds = 8, 4000
	var at [rows][rows]int     // how often a row had a place
	var follow [rows][rows]int // how often a row came right after another
	for round := range rounds {
		got := order(99, round, rows)
		if !slices.Equal(got, order(99, round, rows)) {
			t.Fatal("the same seed and round give another order")
		}
		sorted := slices.Sorted(slices.Values(got))
		for i, row := range sorted {
			if row != i {
				t.Fatalf("round %d: %v does not run each row once", round, got)
			}
		}
		for place, row := range got {
			at[row][place]++
			if place > 0 {
				follow[got[place-1]][row]++
			}
		}
	}
	// Each count is binomial; five standard deviations are far beyond chance.
	check := func(what string, got int, probability float64) {
		t.Helper()
		want := probability * rounds
		if d := float64(got) - want; d*d > 25*want*(1-probability) {
			t.Errorf("%s: %d times, want about %.0f", what, got, want)
		}
	}
	for i := range rows {
		for j := range rows {
			check("row at place", at[i][j], 1.0/rows)
			if i != j {
				check("row after row", follow[i][j], 1.0/rows)
			}
		}
	}
	if slices.Equal(order(1, 0, 30), order(2, 0, 30)) {
		t.Error("two seeds give the same order")
	}
	if got := order(1, 0, 0); len(got) != 0 {
		t.Errorf("no rows: %v", got)
	}
}

func TestPace(t *testing.T) {
	start := time.Unix(1000, 0)
	p := pace{total: 10, each: time.Second, started: start}
	after := func(d time.Duration) time.Duration { return p.left(start.Add(d)) }
	if got := after(400 * time.Millisecond); got != 9600*time.Millisecond {
		t.Errorf("at first %v", got)
	}
	if got := after(time.Minute); got != 0 {
		t.Errorf("when the first sample is late: %v", got)
	}
	p.done = 4
	if got := after(8 * time.Second); got != 12*time.Second {
		t.Errorf("4 of 10 in 8 s: %v left", got)
	}
	p.complete(2, 4)
	if got := after(10 * time.Second); p.done != 5 || got != 10*time.Second {
		t.Errorf("half done in 10 s: %d, %v left", p.done, got)
	}
	p.done = 12
	if got := after(time.Minute); got != 0 {
		t.Errorf("more than all done: %v", got)
	}
}
