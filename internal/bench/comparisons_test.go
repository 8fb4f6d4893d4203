// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"testing"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// suiteOf returns a suite with paths and a workload, and rows of the paths.
func suiteOf(w suites.Workload, ids ...string) (suites.Suite, map[string]*measuredRow, map[result.Key]*measuredRow) {
	s := suites.Suite{Name: "x", Workloads: []suites.Workload{w}}
	rows, byKey := map[string]*measuredRow{}, map[result.Key]*measuredRow{}
	for _, id := range ids {
		s.Paths = append(s.Paths, suites.Path{ID: id})
	}
	for _, p := range s.Paths {
		row := newRow(rowSpec{s, p, w})
		rows[p.ID], byKey[row.row.Key()] = row, row
	}
	return s, rows, byKey
}

// TestComparisonsCoverCommonRounds compares two rows as their rounds complete, with and without turns: each comparison
// covers the rounds that both have. In the file turns leave their ratios to the samples once there is an interval.
func TestComparisonsCoverCommonRounds(t *testing.T) {
	for _, turns := range []bool{false, true} {
		s, rows, byKey := suiteOf(suites.Workload{Name: load.TCPRR, Flows: 1}, "a", "b")
		s.Pairs = []suites.Pair{{Name: "a / b", Numerator: "a", Denominator: "b"}, {Numerator: "a", Denominator: "none"}}
		o := Options{Suites: []suites.Suite{s}}
		if got := o.comparisons(byKey); len(got) > 0 {
			t.Errorf("comparisons of nothing: %+v", got)
		}
		both := 0
		for round := range 12 {
			for id, value := range map[string]float64{"a": float64(10 + round), "b": 5} {
				switch at := round / 3; {
				case id == "b" && round == 3:
					continue
				case turns:
					rows[id].addTurns(stats.Position{Lab: at, Process: at, Connection: at, Round: round}, round,
						load.SliceResult{Count: uint64(1000 * value), Seconds: 1})
				default:
					rows[id].add(sample{measurement: load.Measurement{Rate: value}}, round)
				}
			}
			if round != 3 {
				both++
			}
			got := slices.DeleteFunc(o.comparisons(byKey), func(c result.Comparison) bool { return c.Asks != "" })
			if len(got) != 1 || got[0].RoundsDone() != both {
				t.Fatalf("round %d: %+v, want one of %d rounds", round, got, both)
			}
			c, last := got[0], float64(10+round)/5
			if round == 3 {
				last = 12.0 / 5
			}
			if len(c.Ratios) > 0 && math.Abs(c.Ratios[both-1]-last) > 1e-12 || (len(c.Ratios) == 0) != (turns && c.CI95 != nil) {
				t.Errorf("round %d: ratios %v, interval %v", round, c.Ratios, c.CI95)
			}
			if enough := both >= minInterval && (!turns || round > 5); (c.CI95 != nil) != enough {
				t.Errorf("round %d: interval %v", round, c.CI95)
			}
		}
		rows["b"].fail(ErrInterrupted)
		if got := o.comparisons(byKey); len(got) > 0 {
			t.Errorf("a failed row is compared: %+v", got)
		}
	}
}

// TestRankingBeginsWithTheBest compares each contender with the best, also where less is better. The best figures are
// those of rows that can't win: a baseline, a cluster IP, a pod IP with BIG TCP, one in a network with kube-proxy's
// rules, a repeat.
func TestRankingBeginsWithTheBest(t *testing.T) {
	for _, tt := range []struct {
		setup result.Setup
		best  string
	}{{result.Setup{}, "c"}, {result.Setup{Rate: 1000}, "a"}} {
		of := comparedRows{workload: suites.Workload{Name: load.TCPRR, Flows: 1, Setup: tt.setup}}
		var rows map[string]*measuredRow
		of.suite, rows, of.rows = suiteOf(of.workload, "a", "b", "c", "d", "loopback", "service", "big", "rules", "again")
		of.suite.Report.Layout = result.LayoutMatrix
		for i := range of.suite.Paths {
			p := &of.suite.Paths[i]
			p.Baseline, p.Target, p.Lab.Via, p.Lab.BigTCP = p.ID == "loopback", result.TargetPodIP, lab.ViaNone, p.ID == "big"
			figure := float64(1 + i%3)
			switch p.ID {
			case "service":
				p.Target = result.TargetClusterIP
			case "rules":
				p.Lab.Via = lab.ViaIPTables
			case "again":
				p.Repeats = "a"
			case "d":
				p.Lab.Via = lab.ViaEBPFTC
			}
			if i > 3 {
				figure = 10
				if tt.setup.Rate > 0 { // less is better
					figure = 0.1
				}
			}
			rows[p.ID].addTurns(stats.Position{}, 0, load.SliceResult{Count: uint64(figure * 1000), Seconds: 1,
				LatencySeconds: figure * figure})
		}
		var others []string
		for _, p := range of.rankingPairs() {
			if p.Denominator != tt.best || p.Asks != result.AsksRank {
				t.Errorf("%s: pair %+v, want the best row %s below the line", of.workload, p, tt.best)
			}
			others = append(others, p.Numerator)
		}
		slices.Sort(others)
		want := slices.DeleteFunc([]string{"a", "b", "c", "d"}, func(id string) bool { return id == tt.best })
		if !slices.Equal(others, want) {
			t.Errorf("%s: %v are compared with %s, want %v", of.workload, others, tt.best, want)
		}
	}
}

// TestUnrepeated checks that a suite is told of only if it compares kernel paths and measured
// none of them twice.
func TestUnrepeated(t *testing.T) {
	var all []result.Comparison
	for _, tt := range []struct {
		suite, class string
		aa, noted    bool
	}{
		{"x", result.ClassUserSpace, false, false}, {"other", result.ClassKernel, false, false},
		{"x", result.ClassKernel, false, true}, {"x", result.ClassUserSpace, true, true},
		{"x", result.ClassKernel, true, false},
	} {
		all = append(all, result.Comparison{Suite: tt.suite, Class: tt.class, AA: tt.aa})
		if note := unrepeated(all, "x"); (note != "") != tt.noted {
			t.Errorf("%+v: %q", all, note)
		}
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 7: {7}, 5: {9, 1}, 2: {3, 1, 2}, 3: {4, 1, 1000, 2}} {
		before := slices.Clone(values)
		if got := median(values); got != want || !slices.Equal(before, values) {
			t.Errorf("median(%v) = %g, want %g; it left %v", before, got, want, values)
		}
	}
}

// TestSummarize checks the intervals that a table of the binomial distribution
// gives: from the lo-th smallest to the hi-th smallest value, the narrowest that
// holds the median in 95 % of all cases, which may take one rank less on one
// side.
func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		n      int
		lo, hi float64
	}{
		{6, 1, 6},    // 96.9 %
		{8, 1, 7},    // 96.1 %
		{10, 2, 9},   // 97.9 %
		{20, 6, 15},  // 95.9 %
		{50, 18, 32}, // 95.1 %
	} {
		values := make([]float64, tt.n)
		for i := range values {
			values[i] = float64(tt.n - i)
		}
		center, ci := summarize(values)
		if center != float64(tt.n+1)/2 || ci == nil || ci[0] != tt.lo || ci[1] != tt.hi || values[0] != float64(tt.n) {
			t.Errorf("n %d: median %g, interval %v, want %g to %g", tt.n, center, ci, tt.lo, tt.hi)
		}
	}
	if _, ci := summarize(make([]float64, minInterval-1)); ci != nil {
		t.Errorf("interval %v of too few", ci)
	}
	if center, ci := summarize([]float64{1.1, 1.2, 1.1, 1.1, 1.1, 10}); center != 1.1 || ci == nil || ci[1] != 10 {
		t.Errorf("median %g and interval %v beside an outlier, which counts", center, ci)
	}
}
