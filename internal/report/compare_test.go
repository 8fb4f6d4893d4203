// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aclements/go-moremath/stats"
	"github.com/google/go-cmp/cmp"

	"mustang/internal/result"
	"mustang/internal/testkit"
)

// made is a row with these samples; in labs of so many samples if labs is not 0.
func made(id, unit string, labs int, samples ...float64) result.Row {
	r := result.Row{Suite: "s", ID: id, Workload: result.WorkloadTCPRR, Unit: unit, Status: result.StatusOK,
		Samples: samples}
	r.Median = slices.Sorted(slices.Values(samples))[len(samples)/2]
	for i := range samples {
		if labs > 0 {
			n := len(samples) / labs
			r.Positions = append(r.Positions, result.Position{Lab: i / n, Process: i / n, Connection: i / n, Round: i % n})
		}
	}
	return r
}

func runOf(name string, rows ...result.Row) NamedRun {
	run := result.Run{Clock: result.ClockTime, Finished: time.Unix(1, 0)}
	return NamedRun{name, result.File{Schema: result.Schema, Run: run, Rows: rows}}
}

func compareRuns(t *testing.T, runs ...NamedRun) *Comparison {
	t.Helper()
	c, err := Compare(runs...)
	testkit.Succeed(t, err)
	return c
}

// TestKnownValues compares with package moremath's t-test, and with figures worked out by hand.
func TestKnownValues(t *testing.T) {
	x := []float64{math.Exp(1), math.Exp(2), math.Exp(3), math.Exp(4)}
	y := []float64{math.Exp(11), math.Exp(12.5), math.Exp(13), math.Exp(15)}
	near := func(name string, got, want float64) {
		t.Helper()
		testkit.Check(t, !(math.Abs(got-want) > 1e-3*math.Abs(want)), "%s %g, want %g", name, got, want)
	}
	d := contrast(made("r", "", 4, x...), made("r", "", 4, y...))
	testkit.Check(t, d.Test == "welch-t" && d.Over == "labs" && d.Old == 4 && d.New == 4, "%+v", d)
	near("ratio", math.Log(d.Ratio), 10.375)
	theirs, err := stats.TwoSampleWelchTTest(stats.Sample{Xs: []float64{1, 2, 3, 4}},
		stats.Sample{Xs: []float64{11, 12.5, 13, 15}}, stats.LocationDiffers)
	testkit.Succeed(t, err)
	near("p", d.P, theirs.P)
	for i, share := range []float64{0.025, 0.975} { // the interval's ends, in deviations from the center
		near("end", stats.TDist{V: theirs.DoF}.CDF((math.Log(d.CI95[i])-10.375)*math.Abs(theirs.T)/10.375), share)
	}

	// All ranks apart: p = 2 * 4! 4! / 8!; the interval leaves out no pair: 2*P(U<=0) = 0.029.
	d = contrast(made("r", "", 0, x...), made("r", "", 0, y...))
	testkit.Check(t, d.Test == mannWhitney && d.Over == overSamples, "%+v", d)
	near("p", d.P, 2.0/70)
	near("ratio", math.Log(d.Ratio), 10.25)
	near("low", math.Log(d.CI95[0]), 7)
	near("high", math.Log(d.CI95[1]), 14)
}

// TestUnits checks over what a row is compared: ten rounds of one network are no ten networks.
func TestUnits(t *testing.T) {
	labs := made("r", "", 3, 1, 2, 3, 4, 5, 7)
	one, two := made("r", "", 1, 10, 11, 12, 13, 14, 15, 16), made("r", "", 2, 1, 2, 3, 4, 5, 7)
	zero, same := made("r", "", 3, 0, 1, 2, 3, 4, 5), made("r", "", 3, 2, 2, 2, 2, 2, 2)
	for _, tt := range []struct {
		old, row   result.Row
		test, over string
		units      int
	}{
		{labs, labs, welchT, "labs", 3}, {same, labs, welchT, "labs", 3},
		{labs, one, "", "labs", 3}, {two, labs, "", "labs", 2},
		{labs, zero, mannWhitney, overSamples, 6}, {same, same, mannWhitney, overSamples, 6},
		{made("r", "", 0, 1), labs, mannWhitney, overSamples, 1},
	} {
		d := contrast(tt.old, tt.row)
		testkit.Check(t, d != nil && d.Test == tt.test && d.Over == tt.over && d.Old == tt.units,
			"%v and %v: %+v, want it over %d %s", tt.old.Positions, tt.row.Positions, d, tt.units, tt.over)
		testkit.Check(t, d == nil || !math.IsNaN(d.P) && !(d.P < 0) && !(d.P > 1) && d.Ratio > 0, "%+v", d)
	}
	d := contrast(same, same)
	testkit.Check(t, d.P == 1 && d.Ratio == 1, "two equal rows differ: %+v", d)
	text := compareRuns(t, runOf("old", labs), runOf("new", one)).Text(false)
	testkit.Check(t, text.Answer[0] == "new against old: not certain: fewer than three networks." &&
		text.Tables[0].Columns[3].Cells[0].Text == "not certain", "%q, %+v", text.Answer, text.Tables[0].Columns[3])
}

// TestFalseFindings simulates tables without any difference: by Holm's method at most one in twenty has a finding.
func TestFalseFindings(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, labs := range []int{0, 4} {
		found, covered, rows := 0, 0, 0
		const tables = 1000
		for range tables {
			var runs []NamedRun
			for _, name := range []string{"old", "new"} {
				var rows []result.Row
				for _, id := range []string{"a", "b", "c"} {
					samples := make([]float64, 12)
					lab := 0.0
					for i := range samples {
						if labs > 0 && i%(12/labs) == 0 {
							lab = rng.NormFloat64()
						}
						samples[i] = math.Exp(0.1*lab + 0.05*rng.NormFloat64())
					}
					rows = append(rows, made(id, result.UnitTransactions, labs, samples...))
				}
				runs = append(runs, runOf(name, rows...))
			}
			claimed := false
			for _, line := range compareRuns(t, runs...).Tables[0].Lines {
				d := line.Deltas[0]
				claimed = claimed || d.Found
				rows++
				if d.CI95[0] <= 1 && 1 <= d.CI95[1] {
					covered++
				}
			}
			if claimed {
				found++
			}
		}
		testkit.Check(t, found <= tables*7/100, "%d labs: %d of %d tables have a finding, want 5 %%", labs, found, tables)
		if share := float64(covered) / float64(rows); share < 0.93 || share > 0.985 {
			t.Errorf("%d labs: intervals hold the truth in %.1f %%, want 95 %%", labs, 100*share)
		}
	}
}

// TestDirections checks what counts as worse, the threshold, and the means.
func TestDirections(t *testing.T) {
	low, high := []float64{10, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6}, []float64{12, 12.1, 12.2, 12.3, 12.4, 12.5, 12.6}
	for _, tt := range []struct {
		unit     string
		old, row []float64
		worse    bool
	}{
		{result.UnitGbit, high, low, true}, {result.UnitGbit, low, high, false}, {result.UnitTransactions, high, low, true},
		{result.UnitMilliseconds, low, high, true}, {result.UnitMilliseconds, high, low, false},
		{result.UnitGbit, low, low, false},
	} {
		c := compareRuns(t, runOf("old", made("r", tt.unit, 0, tt.old...)), runOf("new", made("r", tt.unit, 0, tt.row...)))
		d := c.Tables[0].Lines[0].Deltas[0]
		testkit.Check(t, d.Worse == tt.worse && d.Found == (tt.old[0] != tt.row[0]),
			"%s, %v to %v: %+v", tt.unit, tt.old, tt.row, d)
		got := len(c.Worse(0.1)) == 1
		testkit.Check(t, got == tt.worse, "%s: worse by 10 %%: %t, want %t", tt.unit, got, tt.worse)
		testkit.Check(t, len(c.Worse(0.5)) == 0, "%s: worse by 50 %%", tt.unit)
	}
	c := compareRuns(t, runOf("old", made("a", "", 0, 2), made("b", "", 0, 8), made("c", "", 0, 100)),
		runOf("new", made("a", "", 0, 1), made("b", "", 0, 9)))
	if diff := cmp.Diff([]float64{4, 3}, c.Tables[0].Geomean,
		cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Errorf("geomean (-want +got):\n%s", diff)
	}
	ci := c.Tables[0].GeomeanCI95
	testkit.Check(t, len(ci) == 1 && ci[0] == nil, "an interval of a mean of rows without one: %v", ci)
	c = compareRuns(t, runOf("old", made("r", "", 0, low...)), runOf("new", made("r", "", 0, high...)))
	if mean, row := c.Tables[0].GeomeanCI95[0], c.Tables[0].Lines[0].Deltas[0].CI95; math.Abs(mean[0]-row[0]) > 0.01 ||
		math.Abs(mean[1]-row[1]) > 0.01 {
		t.Errorf("interval of the mean of one row %v, of the row %v", mean, row)
	}
	c = compareRuns(t, runOf("old", made("a", "", 0, 0), made("b", "", 0, 8)), runOf("new", made("a", "", 0, 1),
		made("b", "", 0, 9)))
	if c.Tables[0].Geomean != nil || c.Tables[0].Lines[0].Deltas[0] != nil {
		t.Errorf("of a figure of 0: %v, %v", c.Tables[0].Geomean, c.Tables[0].Lines[0].Deltas[0])
	}
}

// TestMissing lists rows that only some runs measured.
func TestMissing(t *testing.T) {
	failed := result.Row{Suite: "s", ID: "b", Workload: result.WorkloadTCPRR, Status: result.StatusFailed,
		Reason: "no good"}
	skipped := failed
	skipped.ID = "d"
	c := compareRuns(t, runOf("old", made("a", "", 0, 1), made("b", "", 0, 1), skipped), runOf("new", made("c", "", 0, 1),
		failed, skipped, made("a", "", 0, 1)))
	want := []missing{
		{Key: result.Key{Suite: "s", ID: "b", Workload: "tcp_rr", Flows: 1}, Run: "new", Reason: "failed: no good"},
		{Key: result.Key{Suite: "s", ID: "c", Workload: "tcp_rr", Flows: 1}, Run: "old"},
	}
	diff := cmp.Diff(want, c.Missing)
	testkit.Check(t, diff == "", "missing (-want +got):\n%s", diff)
	testkit.Check(t, len(c.Tables) == 1 && len(c.Tables[0].Lines) == 1 && c.Tables[0].Lines[0].ID == "a",
		"tables %+v", c.Tables)
}

// TestRefused compares what can't be compared.
func TestRefused(t *testing.T) {
	counted := runOf("counted", made("a", result.UnitPerPacket, 0, 1))
	counted.File.Run.Clock = result.ClockInstructions
	timed := runOf("timed", made("a", result.UnitGbit, 0, 1))
	other := runOf("other", made("a", result.UnitTransactions, 0, 1))
	for want, runs := range map[string][]NamedRun{
		"timed measured time, counted counted instructions": {timed, timed, counted},
		"a tcp_rr is in Gbit/s and transactions/s":          {timed, other},
	} {
		_, err := Compare(runs...)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), want), "%v, want %q in it", err, want)
	}
}

// TestDiffers names the differences, and nothing else.
func TestDiffers(t *testing.T) {
	a, b := runOf("a"), runOf("b")
	a.File.Run = result.Run{
		Machine: result.Machine{CPUModel: "x", CPUs: 2}, Kernel: "6.6", Versions: map[string]string{"go": "1"},
		Pinning:  map[string]int{"client": 0},
		Settings: map[string]string{"s": "1", "t": "1"}, SliceSeconds: 0.01, Seed: 1,
	}
	b.File.Run = result.Run{
		Machine: result.Machine{CPUModel: "x", CPUs: 4}, Kernel: "6.12", Versions: map[string]string{"go": "2"},
		Pinning:  map[string]int{"client": 1},
		Settings: map[string]string{"s": "1", "u": "2"}, SliceSeconds: 2, Seed: 2, Clock: result.ClockTime,
	}
	want := []property{
		{"cpus", []string{"2", "4"}}, {"kernel", []string{"6.6", "6.12"}}, {"version of go", []string{"1", "2"}},
		{"t", []string{"1", ""}},
		{"u", []string{"", "2"}}, {"CPU of client", []string{"0", "1"}}, {"slice", []string{"10ms", "2s"}},
	}
	diff := cmp.Diff(want, compareRuns(t, a, b).Differs)
	testkit.Check(t, diff == "", "differs (-want +got):\n%s", diff)
	d := compareRuns(t, a, a).Differs
	testkit.Check(t, len(d) == 0, "a run differs from itself: %v", d)
}

// TestLostWithoutJudgement names rows that no samples could show to be worse, and latencies that fall to 0.
func TestLostWithoutJudgement(t *testing.T) {
	old := []float64{100, 101, 102, 99, 98, 100, 101, 103, 97, 100, 100, 101}
	for name, c := range map[string]struct {
		unit     string
		old, now []float64
		lost     int
	}{
		"latency falls to 0": {"us", old, make([]float64, 12), 1},
		"one sample":         {"transactions/s", old, []float64{1}, 1},
		"two samples":        {"transactions/s", old[:2], []float64{1, 1}, 1},
		"enough samples":     {"transactions/s", old, old, 0},
		"rate falls to 0":    {"transactions/s", old, []float64{0}, 0}, // it is worse
	} {
		co := compareRuns(t, runOf("old", made("r", c.unit, 0, c.old...)), runOf("new", made("r", c.unit, 0, c.now...)))
		lost := co.Lost()
		testkit.Check(t, len(lost) == c.lost, "%s: lost %v, want %d", name, lost, c.lost)
	}
}

// TestWarnings checks the warnings on disturbed runs, and that a quiet run gets none.
func TestWarnings(t *testing.T) {
	aa := func(low, high float64, class string) result.Comparison {
		return result.Comparison{AA: true, CI95: &[2]float64{low, high}, Class: class}
	}
	quiet, noisy, wild := runOf("quiet"), runOf("noisy"), runOf("wild")
	quiet.File.Run.Comparisons = []result.Comparison{aa(0.98, 1.03, "kernel"), aa(0.3, 2, "user space"), {AA: true}}
	quiet.File.Run.Notes = []string{"The peer is far away.", repeatRun}
	noisy.File.Run.Quick, noisy.File.Run.Comparisons = true, []result.Comparison{aa(0.96, 1.2, "")}
	wild.File.Rows = []result.Row{made("r", "", 1, make([]float64, 12)...)}
	wild.File.Run.Finished, wild.File.Run.Comparisons = time.Time{}, []result.Comparison{aa(0.25, 1.5, "kernel")}
	wild.File.Run.Notes = []string{"Not reliable: other programs kept 2.0 of 2 CPUs busy. Repeat the run on a quiet machine."}
	want := []runWarning{
		{"noisy", []string{"quick run", "the same path measured twice may differ by 20.0 %"}},
		{"wild", []string{"unfinished: 12 rounds done", "not reliable: other programs kept 2.0 of 2 CPUs busy",
			"the same path measured twice may differ by a factor of 4.0"}},
	}
	diff := cmp.Diff(want, compareRuns(t, quiet, noisy, wild).Warnings)
	testkit.Check(t, diff == "", "warnings (-want +got):\n%s", diff)
}

// TestLacks distinguishes a run without a suite from a run without some rows of it.
func TestLacks(t *testing.T) {
	other := made("z", "", 0, 1)
	other.Suite = "other"
	c := compareRuns(t, runOf("old", made("a", "", 0, 1), made("b", "", 0, 1), other), runOf("new", made("a", "", 0, 1)),
		runOf("none", made("c", "", 0, 1)))
	for run, want := range map[string][2]bool{"old": {false, false}, "new": {false, true}, "none": {false, true}} {
		got := [2]bool{!c.measured[[2]string{run, "s"}], !c.measured[[2]string{run, "other"}]}
		testkit.Check(t, got == want, "%s lacks s and other: %v, want %v", run, got, want)
	}
}
