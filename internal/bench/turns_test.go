// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestTurns checks that in each round every row has two turns, that a block's turns follow
// each other and read the same from both ends, and that orders vary.
func TestTurns(t *testing.T) {
	blocks := [][]int{{0, 1, 4}, {2, 3}, {5}}
	seen := map[int]bool{}
	for round := range 50 {
		got := turns(7, round, blocks)
		again := turns(7, round, blocks)
		testkit.Require(t, slices.Equal(got, again), "round %d: %v, and %v the second time", round, got, again)
		seen[got[0]] = true
		for len(got) > 0 {
			i := slices.IndexFunc(blocks, func(b []int) bool { return slices.Contains(b, got[0]) })
			n := 2 * len(blocks[i])
			there, back := got[:n/2], slices.Clone(got[n/2:n])
			slices.Reverse(back)
			if !slices.Equal(there, back) || !slices.Equal(slices.Sorted(slices.Values(there)), blocks[i]) {
				t.Fatalf("round %d: block %v takes turns %v", round, blocks[i], got[:n])
			}
			got = got[n:]
		}
	}
	testkit.Check(t, len(seen) == 6, "rows %v begin a round, want each of 6 in turn", seen)
}

// TestSlowRowsTakeFewerRounds checks in which rounds rows take part.
func TestSlowRowsTakeFewerRounds(t *testing.T) {
	for _, tt := range []struct {
		every [2]int
		want  []string // of rounds 0 to 4
	}{
		{[2]int{0, 4}, []string{"[[0 1]]", "[[0]]", "[[0]]", "[[0]]", "[[0 1]]"}},
		{[2]int{4, 8}, []string{"[[0 1]]", "[[0]]", "[[0 1]]", "[[0]]", "[[0 1]]"}}, // without a quick one
		{[2]int{8, 8}, []string{"[[0 1]]", "[[0 1]]", "[[0 1]]", "[[0 1]]", "[[0 1]]"}},
	} {
		var e epoch
		for _, every := range tt.every {
			row := newRow(rowSpec{})
			row.every = every
			e.connections = append(e.connections, &connection{row: row})
		}
		for round, want := range tt.want {
			got := fmt.Sprint(e.blocks(round))
			testkit.Check(t, got == want, "every %v: round %d has %s, want %s", tt.every, round, got, want)
		}
	}
}

// TestSpoiltRoundsOfSuite counts all rounds, and the disturbed ones, of each suite separately.
func TestSpoiltRoundsOfSuite(t *testing.T) {
	r := &run{turned: 1000} // of the suite before
	e := epoch{run: r, connections: []*connection{{row: newRow(rowSpec{})}}}
	for i := range 8 {
		turn := load.SliceResult{}
		if i%2 == 0 {
			turn.Machine.StealSeconds = 0.01
		}
		e.repeats([]int{0, 0}, e.spoilt([]int{0, 0}, []load.SliceResult{turn, turn}))
	}
	if notes := r.disturbed.notes(); len(notes) != 1 ||
		!strings.HasPrefix(notes[0], "Of 8 rounds of all workloads, 4 were disturbed") {
		t.Errorf("notes %q", notes)
	}
}

// TestDisturbedSuites names each suite of a run of several in its notes.
func TestDisturbedSuites(t *testing.T) {
	r := &run{options: Options{Suites: make([]suites.Suite, 2)}}
	for _, suite := range []string{"latency", "switching"} {
		r.disturbed = disturbances{idle: 1, others: 2}
		r.noteDisturbances(suite)
	}
	busy := fmt.Sprintf("other programs kept 2.0 of %d CPUs busy. Repeat the run on a quiet machine.", runtime.NumCPU())
	if want := []string{
		"Suite latency: Not reliable: " + busy,
		"Suite switching: Not reliable: " + busy,
	}; !slices.Equal(r.head.Notes, want) {
		t.Errorf("notes %q", r.head.Notes)
	}
}

// TestWiresWithARateLoseSegments checks on which paths segments that are sent again spoil a round.
func TestWiresWithARateLoseSegments(t *testing.T) {
	for _, tt := range []struct {
		options lab.Options
		want    bool
	}{{lab.Options{}, true}, {lab.Options{WireDelay: 1}, true}, {lab.Options{WireRate: 1e9}, false},
		{lab.Options{Guests: true}, false}} {
		path := suites.Path{}
		path.Lab = tt.options
		e := epoch{connections: []*connection{{row: newRow(rowSpec{path: path})}}}
		got := e.spoilt([]int{0}, []load.SliceResult{{Retransmits: 1}})
		testkit.Check(t, got == tt.want, "%+v: spoilt %t", tt.options, got)
	}
}

// TestCPUTimeIsOfSamples divides the CPU time of the samples by their own transfer: slices without a sample, such as
// slices of disturbed rounds, are in neither.
func TestCPUTimeIsOfSamples(t *testing.T) {
	for _, tt := range []struct {
		workload suites.Workload
		want     float64
	}{
		{suites.Workload{Name: load.TCPRR}, 10},
		{suites.Workload{Name: load.TCPStream}, 10e6},
		{suites.Workload{Name: load.TCPRR, Setup: result.Setup{LoadShare: 0.5}}, 0},
	} {
		row := newRow(rowSpec{workload: tt.workload})
		turn := load.SliceResult{Count: 100, Seconds: 0.001, Machine: clock.MachineTime{BusySeconds: 0.001}}
		row.addTurns(stats.Position{}, 0, turn, turn)
		row.addEpoch(load.Measurement{Count: 1000, Units: 1000}, result.Evidence{}, false)
		if got, ok := row.result(); !ok || math.Abs(got.CPUUSPerUnit-tt.want) > 1e-9*tt.want {
			t.Errorf("%s: %g µs, want %g", tt.workload, got.CPUUSPerUnit, tt.want)
		}
	}
}

// TestRoundsWithNothingAreTold checks the note on rounds that count in no figure.
func TestRoundsWithNothingAreTold(t *testing.T) {
	if got := joined("slow",
		emptyNote([]float64{1, 0, 2,
			0})); got != "slow; nothing arrived in 2 of 4 rounds: they are in neither figure nor ratios" {
		t.Errorf("%q", got)
	}
	got := joined("slow", emptyNote([]float64{1, 2}))
	testkit.Check(t, got == "slow", "%q", got)
}

// TestOrderIsReproducible runs each row once, in an order that seed and round determine.
func TestOrderIsReproducible(t *testing.T) {
	got := order(99, 3, 30)
	if !slices.Equal(got, order(99, 3, 30)) || slices.Equal(got, order(99, 4, 30)) || slices.Equal(got, order(98, 3, 30)) {
		t.Errorf("order %v does not follow seed and round", got)
	}
	for i, row := range slices.Sorted(slices.Values(got)) {
		testkit.Require(t, row == i, "%v does not run each row once", got)
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
		testkit.Succeed(t, err)
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
		testkit.Check(t, want(len(groups), len(labs)) && total == len(specs),
			"count %q: %d groups of %d rows for %d labs and %d rows", count, len(groups), total, len(labs), len(specs))
	}
}

// TestBuildOfManyLabs builds more labs at once than there are builders, which fail at once. The race detector watches.
func TestBuildOfManyLabs(t *testing.T) {
	s := testbed{labs: map[lab.Options]*lab.Lab{}, failed: map[lab.Options]error{}, notes: map[lab.Options]string{}}
	var all []lab.Options
	for i := range 10 * builders {
		all = append(all, lab.Options{Topology: fmt.Sprint("none-", i)})
	}
	if err := s.build(t.Context(), append(all, all...)); err != nil || len(s.failed) != len(all) || s.built != len(all) {
		t.Errorf("%v, %d of %d labs failed, %d were built", err, len(s.failed), len(all), s.built)
	}
}

// TestResetKeepsListeners removes a client that has ended: its server still listens, and
// cannot do so twice. Without the server nothing listens.
func TestResetKeepsListeners(t *testing.T) {
	for key, listening := range map[agentKey]int{sharedClient: 1, sharedServer: 0} {
		a, err := load.StartAgent(t.Context(), load.AgentOptions{CPU: -1})
		testkit.Succeed(t, err)
		testkit.Succeed(t, a.Close())
		s := testbed{agents: map[agentKey]*load.Agent{key: a}, listening: map[agentKey]bool{{place: "pod-b"}: true}}
		if err := s.reset(suites.Path{}); err != nil || len(s.agents) > 0 || len(s.listening) != listening {
			t.Errorf("%v: %v, %d agents, %d listeners, want %d", key, err, len(s.agents), len(s.listening), listening)
		}
	}
}

func budgetOf(rounds int) *budget {
	b := newBudget(Options{Rounds: rounds, Progress: quiet()}, time.Now(), 0, 1)
	b.begin()
	return b
}
