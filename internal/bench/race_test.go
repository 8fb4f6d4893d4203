// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// racing returns a run with a matrix of rows whose true figures are given, and a function that measures instances of 40
// rounds.
func racing(figures map[string]float64, noise float64) (r *run, rows []*measuredRow, measure func(instances int)) {
	w := suites.Workload{Name: load.TCPRR, Flows: 1}
	suite := suites.Suite{Name: "x", Workloads: []suites.Workload{w}, Report: result.Suite{Layout: result.LayoutMatrix}}
	for _, id := range []string{"a", "a/again", "b", "c", "loopback"} {
		p := suites.Path{ID: id, Baseline: id == "loopback"}
		p.Target = result.TargetPodIP
		p.Lab.Via = "none"
		if id == "a/again" {
			p.Repeats = "a"
			suite.Pairs = append(suite.Pairs, suites.Pair{Numerator: id, Denominator: "a", AA: true})
		}
		suite.Paths = append(suite.Paths, p)
	}
	// which the answer does not print
	suite.Pairs = append(suite.Pairs, suites.Pair{Numerator: "c", Denominator: "loopback"})
	r = &run{options: Options{Suites: []suites.Suite{suite}, Time: time.Minute}, compared: comparisons{}}
	for _, p := range suite.Paths {
		rows = append(rows, newRow(rowSpec{suite, p, w}))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	lab, round := 0, 0
	return r, rows, func(instances int) {
		for range instances {
			for range 40 {
				for _, row := range rows {
					if !row.answered {
						rate := 1e5 * figures[row.row.ID] * math.Exp(noise*rng.NormFloat64())
						row.addTurns(stats.Position{Lab: lab, Process: lab, Connection: lab, Round: round}, round,
							load.SliceResult{Count: uint64(rate), Seconds: 1})
					}
				}
				round++
			}
			lab++
		}
	}
}

// TestAnsweredRowsRest checks that a row with answered questions stops its turns, while rows with open questions and
// the A/A pair go on. The resting row keeps the interval of the look.
func TestAnsweredRowsRest(t *testing.T) {
	r, rows, measure := racing(map[string]float64{"a": 1, "a/again": 1, "b": 0.985, "c": 0.5, "loopback": 2}, 0.05)
	b := newBudget(Options{Time: time.Minute, Progress: quiet()}, time.Now(), time.Second, 1)
	measure(lookInstances)
	r.look(rows, b)
	rests := map[string]bool{}
	for _, row := range rows {
		rests[row.row.ID] = row.answered
	}
	testkit.Require(t, rests["c"] && rests["loopback"] && !rests["a"] && !rests["a/again"] && !rests["b"],
		"rows that rest: %v, want c and loopback, which nobody asks of", rests)
	samples := len(rows[3].row.Samples)
	measure(10)
	if len(rows[3].row.Samples) != samples || len(rows[0].row.Samples) <= samples {
		t.Errorf("c has %d samples, a %d, c had %d", len(rows[3].row.Samples), len(rows[0].row.Samples), samples)
	}
	byKey := keyed(rows)
	of := comparedRows{r.options.Suites[0], r.options.Suites[0].Workloads[0], byKey}
	for _, c := range r.compared.compareAll(r.options, of) {
		want := endAlpha
		if c.Numerator == "c" || c.Denominator == "loopback" {
			want = lookAlpha
		}
		testkit.Check(t, c.alpha == want, "%s / %s spends %g, want %g", c.Numerator, c.Denominator, c.alpha, want)
		testkit.Check(t, c.Asks != result.AsksRank || c.Denominator == "a",
			"ranked against %s: a baseline is no contender", c.Denominator)
	}
}

// TestRestingRowIsNotTheBest slows the machine after a slower row rests. The row stays behind, and its figure in the
// file matches the slower machine.
func TestRestingRowIsNotTheBest(t *testing.T) {
	figures := map[string]float64{"a": 1, "a/again": 1, "b": 0.99, "c": 0.9, "loopback": 2}
	r, rows, measure := racing(figures, 0.02)
	measure(lookInstances)
	r.look(rows, newBudget(Options{Time: time.Minute, Progress: quiet()}, time.Now(), time.Second, 1))
	for id := range figures {
		figures[id] *= 0.5
	}
	measure(3 * lookInstances)
	of := comparedRows{r.options.Suites[0], r.options.Suites[0].Workloads[0], keyed(rows)}
	if ranked := of.ranked(); ranked[0].ID == "c" || ranked[len(ranked)-1].ID != "c" {
		t.Errorf("%s is the best, %s the last", ranked[0].ID, ranked[len(ranked)-1].ID)
	}
	r.rows = rows
	byID := map[string]result.Row{}
	for _, row := range r.file().Rows {
		byID[row.ID] = row
	}
	got := byID["c"].Median / byID["a"].Median
	testkit.Check(t, !(math.Abs(got-0.9) > 0.01), "c has %.3f of the figure of a, want 0.9", got)
}

// TestEndsWhenAllIsAnswered checks that the run ends without an open question.
func TestEndsWhenAllIsAnswered(t *testing.T) {
	r, rows, measure := racing(map[string]float64{"a": 1, "a/again": 1, "b": 0.8, "c": 0.5, "loopback": 2}, 0.02)
	measure(lookInstances)
	testkit.Check(t, !r.look(rows, newBudget(Options{Time: time.Minute, Progress: quiet()}, time.Now(), time.Second, 1)),
		"a question is open")
}

// TestAnswered is a table of intervals.
func TestAnswered(t *testing.T) {
	for _, tt := range []struct {
		low, high float64
		want      bool
	}{
		{0.996, 1.004, true},  // equal within 0.5 %
		{0.985, 1.005, false}, // neither
		{0.96, 0.99, true},    // different, ±1.5 %
		{0.90, 0.96, false},   // different, ±3 % of a difference of 7 %
		{0.40, 0.58, false},   // half, ±20 % of 52 %
		{0.47, 0.52, true},    // half, ±5 % of 51 %
		{1.3, 1.4, true},
	} {
		c := stats.Comparison{Estimate: stats.Estimate{Value: math.Sqrt(tt.low * tt.high), Interval: &[2]float64{tt.low,
			tt.high}, Over: stats.Lab}}
		differs := tt.low > 1 || tt.high < 1
		testkit.Check(t, answered(c, differs) == tt.want && (!differs || !(tt.high/tt.low < 1.05) || !answered(c, false)),
			"%g to %g: answered %t", tt.low, tt.high, !tt.want)
	}
}

// TestLooksAreFixed looks after each quarter of the time but the last, and once if a long instance spans several
// quarters.
func TestLooksAreFixed(t *testing.T) {
	for instance, want := range map[time.Duration]int{time.Second: 3, 30 * time.Second: 3, 60 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(Options{Time: 100 * time.Second, Progress: quiet()}, time.Now(), time.Second, 1)
			looked := 0
			for time.Since(b.started) < b.options.Time {
				time.Sleep(instance)
				if b.quarter() {
					looked++
				}
			}
			testkit.Check(t, !b.quarter() && looked == want, "instances of %v: %d looks, want %d", instance, looked, want)
		})
	}
	for _, o := range []Options{{Rounds: 100}, {Time: time.Nanosecond, Until: 0.01}} {
		o.Progress = quiet()
		b := newBudget(o, time.Now(), 0, 1)
		testkit.Check(t, !b.quarter(), "%+v: a look", o)
	}
}

// TestWideWorkloadsGetTime weighs workloads by the square of their widest interval, within bounds.
func TestWideWorkloadsGetTime(t *testing.T) {
	got := weigh(map[string]float64{"streams": 0.03, "requests": 0.01, "connects": 0.02})
	if got["streams"] <= got["connects"] || got["connects"] <= got["requests"] || got["requests"] < leastWeight ||
		got["streams"] > mostWeight {
		t.Errorf("%v", got)
	}
	got = weigh(map[string]float64{"requests": 0})
	testkit.Check(t, got["requests"] == 1, "%v", got)
}
