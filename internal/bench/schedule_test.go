// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
)

// TestOrderIsReproducible runs each row once, in an order that seed and round determine.
func TestOrderIsReproducible(t *testing.T) {
	got := order(99, 3, 30)
	if !slices.Equal(got, order(99, 3, 30)) || slices.Equal(got, order(99, 4, 30)) || slices.Equal(got, order(98, 3, 30)) {
		t.Errorf("order %v does not follow seed and round", got)
	}
	for i, row := range slices.Sorted(slices.Values(got)) {
		if row != i {
			t.Fatalf("%v does not run each row once", got)
		}
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
