// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/result"
)

// TestWarnings names what disturbed runs, and says nothing of a quiet one.
func TestWarnings(t *testing.T) {
	aa := func(low, high float64, class string) result.Comparison {
		return result.Comparison{AA: true, CI95: &[2]float64{low, high}, Class: class}
	}
	quiet, noisy, wild := run("quiet"), run("noisy"), run("wild")
	quiet.File.Run.Comparisons = []result.Comparison{aa(0.98, 1.03, "kernel"), aa(0.3, 2, "user space"), {AA: true}}
	quiet.File.Run.Notes = []string{"The peer is far away.", repeatRun}
	noisy.File.Run.Quick, noisy.File.Run.Comparisons = true, []result.Comparison{aa(0.96, 1.2, "")}
	wild.File.Run.Interrupted, wild.File.Run.Comparisons = true, []result.Comparison{aa(0.25, 1.5, "kernel")}
	wild.File.Run.Notes = []string{"Others kept 2.0 CPUs busy. Repeat the run on a quiet machine."}
	want := []Warning{
		{"noisy", []string{"quick run", "the same path measured twice may differ by 20.0 %"}},
		{"wild", []string{"interrupted", "others kept 2.0 CPUs busy",
			"the same path measured twice may differ by a factor of 4.0"}},
	}
	if diff := cmp.Diff(want, compareRuns(t, quiet, noisy, wild).Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// TestLacks tells a run without a suite from one that lacks rows of it.
func TestLacks(t *testing.T) {
	other := made("z", "", 0, 1)
	other.Suite = "other"
	c := compareRuns(t, run("old", made("a", "", 0, 1), made("b", "", 0, 1), other), run("new", made("a", "", 0, 1)),
		run("none", made("c", "", 0, 1)))
	for run, want := range map[string][2]bool{"old": {false, false}, "new": {false, true}, "none": {false, true}} {
		if got := [2]bool{c.Lacks(run, "s"), c.Lacks(run, "other")}; got != want {
			t.Errorf("%s lacks s and other: %v, want %v", run, got, want)
		}
	}
}
