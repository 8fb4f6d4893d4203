// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

func TestOrderIsUniform(t *testing.T) {
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

// TestGroupsInterleaveOnlyTimedRows checks that labs are measured one after the other where instructions are
// counted, and interleaved otherwise.
func TestGroupsInterleaveOnlyTimedRows(t *testing.T) {
	for count, want := range map[string]func(groups, labs int) bool{
		"":                       func(groups, _ int) bool { return groups == 1 },
		result.ClockInstructions: func(groups, labs int) bool { return groups == labs && labs > 5 },
	} {
		specs, err := Options{Suites: lookup(t, suites.Default), Count: count}.selected()
		if err != nil {
			t.Fatal(err)
		}
		labs := map[any]bool{}
		var rows []*measuredRow
		for _, s := range specs {
			rows = append(rows, newRow(s))
			labs[s.path.Lab] = true
		}
		total := 0
		groups := groupRows(rows, count != "")
		for _, group := range groups {
			total += len(group)
		}
		if !want(len(groups), len(labs)) || total != len(specs) {
			t.Errorf("count %q: %d groups of %d rows for %d labs and %d rows", count, len(groups), total, len(labs), len(specs))
		}
	}
}
