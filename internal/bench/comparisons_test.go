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
	"mustang/internal/testkit"
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
	got := known.update(o, measured)
	testkit.Check(t, len(got) == 0, "comparisons of nothing: %+v", got)
	both := 0
	for round := range o.Rounds {
		a.add(sample{figure: figure{value: float64(10 + round)}}, round)
		if round != 3 {
			b.add(sample{figure: figure{value: 5}}, round)
			both++
		}
		for range 2 { // the second one is cached
			got := known.update(o, measured)
			if len(got) != 1 || len(got[0].Ratios) != both ||
				math.Abs(got[0].Ratios[both-1]-float64(10+round-btoi(round == 3))/5) > 1e-12 {
				t.Fatalf("round %d: %+v, want one of %d rounds", round, got, both)
			}
			known := got[0].CI95 != nil
			testkit.Check(t, known == (both >= minInterval), "round %d: interval %v", round, got[0].CI95)
		}
	}
	b.fail(ErrInterrupted)
	got = known.update(o, measured)
	testkit.Check(t, len(got) == 0, "a failed row is compared: %+v", got)
}

// TestFileHasNoRatiosOfTurns checks that comparisons of rows that took turns leave their ratios to
// the samples, once there is an interval, and keep their number.
func TestFileHasNoRatiosOfTurns(t *testing.T) {
	w := suites.Workload{Name: load.TCPRR, Flows: 1}
	suite := suites.Suite{Name: "x", Workloads: []suites.Workload{w},
		Pairs: []suites.Pair{{Numerator: "a", Denominator: "b"}}}
	o := Options{Seed: 1, Suites: []suites.Suite{suite}}
	measured := map[result.Key]*measuredRow{}
	for _, id := range []string{"a", "b", "c"} {
		p := suites.Path{}
		p.ID = id
		o.Suites[0].Paths = append(o.Suites[0].Paths, p)
		row := newRow(rowSpec{suite, p, w})
		measured[row.row.Key()] = row
	}
	known := comparisons{}
	for round := range 12 {
		for i, row := range []string{"a", "b", "c"} {
			taken := load.SliceResult{Count: uint64(1000 + 100*i + round*(i+1)), Seconds: 1}
			measured[result.Row{Suite: "x", ID: row, Workload: w.Name, Flows: 1}.Key()].addTurns(stats.Position{Lab: round / 3,
				Process: round / 3, Connection: round / 3, Round: round}, round, taken)
		}
		for range 2 { // the second ones are cached
			for _, c := range known.update(o, measured) {
				if kept := len(c.Ratios) > 0; kept != (c.CI95 == nil) || c.RoundsDone() != round+1 {
					t.Errorf("round %d: %s/%s has %d ratios and %d rounds, interval %v", round, c.Numerator, c.Denominator,
						len(c.Ratios), c.RoundsDone(), c.CI95)
				}
			}
		}
	}
	n := len(known.update(o, measured))
	testkit.Check(t, n >= 3, "%d comparisons", n)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestRankingBeginsWithTheBest compares each contender with the best, also where less is better. The best figures
// belong to rows that can't win. These are a baseline, a cluster IP, a pod IP with BIG TCP, a pod IP in a network
// with kube-proxy's rules, a repeat.
func TestRankingBeginsWithTheBest(t *testing.T) {
	for _, tt := range []struct {
		setup result.Setup
		best  string
	}{{result.Setup{}, "c"}, {result.Setup{Rate: 1000}, "a"}} {
		w := suites.Workload{Name: load.TCPRR, Flows: 1, Setup: tt.setup}
		suite := suites.Suite{Name: "x", Report: result.Suite{Layout: result.LayoutMatrix}}
		of := comparedRows{suite, w, map[result.Key]*measuredRow{}}
		for i, id := range []string{"a", "b", "c", "d", "loopback", "service", "big", "rules", "again"} {
			p := suites.Path{ID: id, Baseline: id == "loopback"}
			p.Target, p.Lab.Via, p.Lab.BigTCP = result.TargetPodIP, lab.ViaNone, id == "big"
			figure := float64(1 + i%3)
			switch id {
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
			of.suite.Paths = append(of.suite.Paths, p)
			row := newRow(rowSpec{of.suite, p, w})
			row.addTurns(stats.Position{}, 0, load.SliceResult{Count: uint64(figure * 1000), Seconds: 1,
				LatencySeconds: figure * figure})
			of.rows[row.row.Key()] = row
		}
		var others []string
		for _, p := range of.rankingPairs() {
			testkit.Check(t, p.Denominator == tt.best && p.Asks == result.AsksRank,
				"%s: pair %+v, want the best row %s below the line", w, p, tt.best)
			others = append(others, p.Numerator)
		}
		slices.Sort(others)
		want := slices.DeleteFunc([]string{"a", "b", "c", "d"}, func(id string) bool { return id == tt.best })
		testkit.Check(t, slices.Equal(others, want), "%s: %v are compared with %s, want %v", w, others, tt.best, want)
		got := of.contests()
		testkit.Check(t, got == 3, "%d pairs of four contenders beyond those with the best, want 3", got)
	}
}

// TestUnrepeated checks that a suite is listed only if it compares kernel paths and measured none of them twice.
func TestUnrepeated(t *testing.T) {
	of := func(suite, id, class string, aa bool) (comparisonKey, comparison) {
		c := comparison{result.Comparison{Suite: suite, Numerator: id, Class: class, AA: aa, CI95: &[2]float64{0.99, 1.01}},
			&stats.Comparison{}, 0}
		return comparisonKey{numerator: result.Key{ID: id}}, c
	}
	known := comparisons{}
	add := func(key comparisonKey, c comparison) { known[key] = c }
	add(of("x", "a", result.ClassUserSpace, false))
	add(of("other", "b", result.ClassKernel, false))
	note := known.unrepeated("x")
	testkit.Check(t, note == "", "no kernel path: %q", note)
	add(of("x", "c", result.ClassKernel, false))
	add(of("x", "d", result.ClassUserSpace, true))
	note = known.unrepeated("x")
	testkit.Check(t, note != "", "nothing is said of kernel paths without an A/A pair")
	add(of("x", "e", result.ClassKernel, true))
	note = known.unrepeated("x")
	testkit.Check(t, note == "", "with an A/A pair: %q", note)
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 7: {7}, 5: {9, 1}, 2: {3, 1, 2}, 3: {4, 1, 1000, 2}} {
		before := slices.Clone(values)
		if got := median(values); got != want || !slices.Equal(before, values) {
			t.Errorf("median(%v) = %g, want %g; it left %v", before, got, want, values)
		}
	}
}

// TestSummarize checks the intervals against a table of the binomial distribution: from the lo-th smallest to the
// hi-th smallest value. They are the narrowest that hold the median in 95 % of all cases, and may take one rank less
// on one side.
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
	_, ci := summarize(make([]float64, minInterval-1))
	testkit.Check(t, ci == nil, "interval %v of too few", ci)
	if center, ci := summarize([]float64{1.1, 1.2, 1.1, 1.1, 1.1, 10}); center != 1.1 || ci == nil || ci[1] != 10 {
		t.Errorf("median %g and interval %v beside an outlier, which counts", center, ci)
	}
}
