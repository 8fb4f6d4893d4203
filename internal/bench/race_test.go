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
)

// racing returns a run with a matrix of rows whose true figures are given, and a function that measures instances of 40 rounds.
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
	suite.Pairs = append(suite.Pairs, suites.Pair{Numerator: "c", Denominator: "loopback"}) // which the answer does not print
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
						row.addTurns(stats.Position{Lab: lab, Process: lab, Connection: lab, Round: round}, round, load.SliceResult{Count: uint64(rate), Seconds: 1})
					}
				}
				round++
			}
			lab++
		}
	}
}

// TestAnsweredRowsRest stops the turns of a row whose questions are answered, and goes on with those that are open and with the A/A
// pair. The interval of the row that rests is the look's.
func TestAnsweredRowsRest(t *testing.T) {
	r, rows, measure := racing(map[string]float64{"a": 1, "a/again": 1, "b": 0.985, "c": 0.5, "loopback": 2}, 0.05)
	b := newBudget(Options{Time: time.Minute, Progress: quiet{func() {}}}, time.Now(), time.Second, 1)
	measure(lookInstances)
	r.look(rows, b)
	rests := map[string]bool{}
	for _, row := range rows {
		rests[row.row.ID] = row.answered
	}
	if !rests["c"] || rests["a"] || rests["a/again"] || rests["b"] {
		t.Fatalf("rows that rest: %v, want c alone", rests)
	}
	samples := len(rows[3].row.Samples)
	measure(10)
	if len(rows[3].row.Samples) != samples || len(rows[0].row.Samples) <= samples {
		t.Errorf("c has %d samples, a %d, c had %d", len(rows[3].row.Samples), len(rows[0].row.Samples), samples)
	}
	byKey := map[result.Key]*measuredRow{}
	for _, row := range rows {
		byKey[row.row.Key()] = row
	}
	for _, c := range r.compared.all(r.options, byKey) {
		want := endAlpha
		if c.Numerator == "c" || c.Denominator == "c" {
			want = lookAlpha
		}
		if c.alpha != want {
			t.Errorf("%s / %s spends %g, want %g", c.Numerator, c.Denominator, c.alpha, want)
		}
		if c.Asks == result.AsksRank && c.Denominator != "a" {
			t.Errorf("ranked against %s: a baseline is no contender", c.Denominator)
		}
	}
}

// TestAnswered is a table of intervals.
func TestAnswered(t *testing.T) {
	for _, tt := range []struct {
		low, high float64
		want      bool
	}{
		{0.992, 1.008, true},  // equal within 1 %
		{0.985, 1.005, false}, // neither
		{0.96, 0.99, true},    // different, ±1.5 %
		{0.90, 0.96, false},   // different, ±3 % of a difference of 7 %
		{0.40, 0.58, false},   // half, ±20 % of 52 %
		{0.47, 0.52, true},    // half, ±5 % of 51 %
		{1.3, 1.4, true},
	} {
		c := stats.Comparison{Estimate: stats.Estimate{Value: math.Sqrt(tt.low * tt.high), Interval: &[2]float64{tt.low, tt.high}, Over: stats.Lab}}
		if answered(c) != tt.want {
			t.Errorf("%g to %g: answered %t", tt.low, tt.high, !tt.want)
		}
	}
}

// TestLooksAreFixed looks after each quarter of the time but the last, and not before there are six instances.
func TestLooksAreFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(Options{Time: 100 * time.Second, Progress: quiet{func() {}}}, time.Now(), time.Second, 1)
		var at []int
		for second := range 100 {
			b.done = second / 5
			if b.due() {
				at = append(at, second)
			}
			time.Sleep(time.Second)
		}
		if len(at) != looks || at[0] != 30 || at[1] != 50 || at[2] != 75 {
			t.Errorf("looks after %v seconds", at)
		}
	})
	for _, o := range []Options{{Rounds: 100}, {Time: time.Nanosecond, Until: 0.01}} {
		o.Progress = quiet{func() {}}
		b := newBudget(o, time.Now(), 0, 1)
		if b.done = 100; b.due() {
			t.Errorf("%+v: a look", o)
		}
	}
}

// TestWideWorkloadsGetTime weighs workloads by the square of their widest interval, within bounds.
func TestWideWorkloadsGetTime(t *testing.T) {
	got := weigh(map[string]float64{"streams": 0.03, "requests": 0.01, "connects": 0.02})
	if got["streams"] <= got["connects"] || got["connects"] <= got["requests"] || got["requests"] < leastWeight || got["streams"] > mostWeight {
		t.Errorf("%v", got)
	}
	if got := weigh(map[string]float64{"requests": 0}); got["requests"] != 1 {
		t.Errorf("%v", got)
	}
}
