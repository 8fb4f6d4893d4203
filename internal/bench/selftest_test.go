// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

func measured() result.File {
	var f result.File
	for _, s := range suites.SelfTest() {
		for _, w := range s.Workloads {
			for _, p := range s.Pairs {
				if s.Name == suites.KnownSuite && w.Name != load.TCPRR {
					continue
				}
				f.Run.Comparisons = append(f.Run.Comparisons, result.Comparison{
					Suite: s.Name, Workload: w.Name, Numerator: p.Numerator, Denominator: p.Denominator,
					Ratio: 1, CI95: &[2]float64{0.999, 1.001}, P: 0.5, Verdict: result.VerdictNone,
				})
			}
		}
		for _, p := range s.Paths {
			row := result.Row{Suite: s.Name, ID: p.ID, Status: result.StatusOK,
				Median: 150_000 / (1 + 150_000*p.Delay.Seconds())}
			switch {
			case p.Lab.WireRate > 0:
				row.Median = 0.95
			case p.Lab.WireDelay > 0:
				row.Median = 1 / (2*p.Lab.WireDelay.Seconds() + 5e-4)
			}
			f.Rows = append(f.Rows, row)
			for i := range f.Run.Comparisons {
				if c := &f.Run.Comparisons[i]; c.Numerator == p.ID && (p.Delay > 0 || p.Lab.WireDelay > 0) {
					c.Ratio, c.Verdict = row.Median/150_000, result.VerdictLower
					if p.Lab.WireDelay > 0 {
						c.Ratio = 2.5 / 4.5
					}
					c.CI95 = &[2]float64{c.Ratio * 0.995, c.Ratio * 1.005}
				}
			}
		}
	}
	return f
}

func pair(t *testing.T, f result.File, numerator string) *result.Comparison {
	t.Helper()
	for i := range f.Run.Comparisons {
		if f.Run.Comparisons[i].Numerator == numerator {
			return &f.Run.Comparisons[i]
		}
	}
	t.Fatalf("no comparison of %s", numerator)
	return nil
}

func row(t *testing.T, f result.File, id string) *result.Row {
	t.Helper()
	for i := range f.Rows {
		if f.Rows[i].ID == id {
			return &f.Rows[i]
		}
	}
	t.Fatalf("no row %s", id)
	return nil
}

// TestJudge spoils a run in one way at a time: exactly one check has another status.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		check, status string
		spoil         func(result.File)
	}{
		"sound": {"", "", func(result.File) {}},
		"a false difference": {"the same path, tcp_stream", Failed,
			func(f result.File) { pair(t, f, "veth/2").Verdict = result.VerdictHigher }},
		"intervals too narrow": {"the same path, tcp_rr", Failed, func(f result.File) {
			for i := range f.Run.Comparisons {
				if c := &f.Run.Comparisons[i]; c.Suite == suites.SameSuite && c.Workload == load.TCPRR && i%9 == 0 {
					c.P = 0.04
				}
			}
		}},
		"a delay not found": {"a delay of 35ns in the server", Failed,
			func(f result.File) { pair(t, f, "delay-35ns").Verdict = result.VerdictNone }},
		"a delay of wrong size": {"a delay of 1µs in the server", Failed, func(f result.File) {
			c := pair(t, f, "delay-1µs")
			c.Ratio, c.CI95 = 0.9, &[2]float64{0.899, 0.901}
		}},
		"a delay not measured": {"a delay of 200ns in the server", Failed,
			func(f result.File) { pair(t, f, "delay-200ns").CI95 = nil }},
		"a wire too fast": {"a wire of 1 Gbit/s", Failed, func(f result.File) { row(t, f, "wire-rate").Median = 1.2 }},
		"too short a delay": {"a further delay of 1ms on the wire", Failed, func(f result.File) {
			c := pair(t, f, "wire-delay-twice")
			c.Ratio, c.CI95 = 0.6, &[2]float64{0.599, 0.601}
		}},
		"too wide an interval": {"a further delay of 1ms on the wire", Failed, func(f result.File) {
			pair(t, f, "wire-delay-twice").CI95 = &[2]float64{0.4, 0.8}
		}},
		"no netem": {"a further delay of 1ms on the wire", skipped, func(f result.File) {
			*row(t, f, "wire-delay-twice") = result.Row{ID: "wire-delay-twice", Status: result.StatusSkipped, Reason: "no netem"}
		}},
		"a delay too short for this machine": {"a delay of 35ns in the server", skipped, func(f result.File) {
			row(t, f, suites.KnownPath).Median = 140_000
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := measured()
			tt.spoil(f)
			checks := JudgeSelftest(f)
			testkit.Check(t, len(checks) == 7, "%d checks", len(checks))
			for _, c := range checks {
				want := passed
				if c.Name == tt.check {
					want = tt.status
				}
				testkit.Check(t, c.Status == want && c.Found != "" && c.Want != "", "%+v, want %s", c, want)
			}
		})
	}
}

// TestJudgeCountsPairs checks the number of pairs, without the pairs of other suites and of a ranking.
func TestJudgeCountsPairs(t *testing.T) {
	f := measured()
	f.Run.Comparisons = append(f.Run.Comparisons,
		result.Comparison{Suite: "pod-links", Workload: result.WorkloadTCPRR, CI95: &[2]float64{1, 1}, Ratio: 1,
			Verdict: result.VerdictHigher},
		result.Comparison{Suite: suites.SameSuite, Workload: result.WorkloadTCPRR, CI95: &[2]float64{1, 1}, Ratio: 1,
			Verdict: result.VerdictHigher, Asks: result.AsksRank})
	checks := JudgeSelftest(f)
	testkit.Check(t, strings.HasPrefix(checks[1].Found, "0 in 513 pairs") && checks[1].Status == passed, "%+v", checks[1])
	for _, c := range JudgeSelftest(result.File{}) {
		testkit.Check(t, c.Status == Failed, "of an empty file: %+v", c)
	}
}

// TestFailedRowFailsItsCheck fails a row of the same paths: its pairs are missing.
func TestFailedRowFailsItsCheck(t *testing.T) {
	f := measured()
	f.Rows = append(f.Rows, result.Row{Suite: suites.SameSuite, ID: "veth/1", Workload: load.TCPRR,
		Status: result.StatusFailed, Reason: "lost"})
	failed := 0
	for _, c := range JudgeSelftest(f) {
		if c.Status == Failed {
			failed++
			testkit.Check(t, strings.Contains(c.Found, "veth/1 was not measured: lost"), "%+v", c)
		}
	}
	testkit.Check(t, failed == 1, "%d checks failed, want 1", failed)
}
