// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mustang/internal/bench/progress"
	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
)

// spend measures a suite of some workloads whose rounds take no time, and returns the
// rounds of each instance.
func spend(b *budget, workloads int, round time.Duration) (instances [][]int) {
	for {
		b.begin()
		var taken []int
		for i := range workloads {
			e := b.epoch(workloads-1-i, false)
			for n := e.next(); n > 0; n = e.next() {
				time.Sleep(time.Duration(n) * round)
				e.took(n, time.Duration(n)*round)
			}
			taken = append(taken, e.taken)
		}
		instances = append(instances, taken)
		b.end(stats.Components{Lab: 1e-4, Round: 1e-2})
		if b.over(1) {
			return instances
		}
	}
}

// TestBudgetOfRounds divides a number of rounds among instances: each workload gets all of
// them, and instances are alike.
func TestBudgetOfRounds(t *testing.T) {
	for rounds, want := range map[int]int{1: 1, 3: 1, 4: 2, 24: 8, 100: 8, 5000: 8} {
		instances := spend(newBudget(Options{Rounds: rounds, Progress: quiet{func() {}}}, time.Now(), 2), 2, 0)
		var sums [2]int
		for _, taken := range instances {
			sums[0] += taken[0]
			sums[1] += taken[1]
		}
		if sums != [2]int{rounds, rounds} || len(instances) != want {
			t.Errorf("%d rounds: %v in %d instances, want %d", rounds, sums, len(instances), want)
		}
	}
}

// TestBudgetEstimate estimates the time of a suite after its paths were proved: the instances build
// the networks too, and there are three at least.
func TestBudgetEstimate(t *testing.T) {
	for planned, want := range map[time.Duration]string{time.Second: "about 30s\n", 150 * time.Second: "about 2m20s\n"} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			started := time.Now()
			time.Sleep(10 * time.Second)
			newBudget(Options{Time: planned, Progress: progress.New(&out, false)}, started, 1)
			if out.String() != want {
				t.Errorf("a suite of %v: %q, want %q", planned, out.String(), want)
			}
		})
	}
}

// TestBudgetTimeLeft has networks that are built sooner than the paths were proved, or that take longer than all the time: the
// time left falls, and is near 0 in the end.
func TestBudgetTimeLeft(t *testing.T) {
	for _, o := range []Options{{Time: 35 * time.Second, Quick: true}, {Time: 150 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			o.Progress = progress.New(&out, false)
			started := time.Now()
			time.Sleep(40 * time.Second)
			b := newBudget(o, started, 1)
			for b.done == 0 || !b.over(1) {
				b.begin()
				time.Sleep(15 * time.Second)
				e := b.epoch(0, false)
				for n := e.next(); n > 0; n = e.next() {
					b.show("row", n)
					time.Sleep(time.Duration(n) * 10 * time.Millisecond)
					e.took(n, time.Duration(n)*10*time.Millisecond)
				}
				b.end(stats.Components{Lab: 1e-4, Round: 1e-2})
			}
			b.show("row", 1)
			last := time.Hour
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			for _, line := range lines {
				left, err := time.ParseDuration(strings.Fields(line)[1])
				if err != nil || left >= last {
					t.Errorf("%q does not fall: %v", out.String(), err)
				}
				last = left
			}
			if len(lines) < 2 || last > 30*time.Second {
				t.Errorf("%q: at the end %v are left", out.String(), last)
			}
		})
	}
}

// TestBudgetOfSlowRounds ends where an instance holds fewer rounds than planned.
func TestBudgetOfSlowRounds(t *testing.T) {
	b := newBudget(Options{Rounds: 100, Progress: quiet{func() {}}}, time.Now(), 1)
	taken := 0
	for range 100 {
		b.begin()
		e := b.epoch(0, false)
		for n := e.next(); n > 0; n = e.next() {
			e.took(n, time.Minute)
			taken += n
			e.begun = time.Now().Add(-longestShare)
		}
		b.end(stats.Components{})
		if b.over(1) {
			break
		}
	}
	if !b.over(1) || taken != 100 {
		t.Errorf("%d rounds of 100, over %t", taken, b.over(1))
	}
}

// TestBudgetOfTime ends in time, but not before there are enough instances and rounds.
func TestBudgetOfTime(t *testing.T) {
	for _, o := range []Options{{Time: time.Nanosecond}, {Time: 200 * time.Millisecond}, {Time: 200 * time.Millisecond, Quick: true}} {
		o.Progress = quiet{func() {}}
		instances := spend(newBudget(o, time.Now(), 2), 2, 100*time.Microsecond)
		if len(instances) < minInstances {
			t.Errorf("%v: %d instances", o.Time, len(instances))
		}
		for _, taken := range instances {
			if min(taken[0], taken[1]) < leastRounds {
				t.Errorf("%v: %v rounds in an instance", o.Time, taken)
			}
		}
	}
}

// TestBudgetOfPilots spends little on the first instances, and divides the rest evenly.
func TestBudgetOfPilots(t *testing.T) {
	for _, until := range []float64{0, 1e-9} {
		synctest.Test(t, func(t *testing.T) {
			o := Options{Time: time.Minute, Until: until, Progress: quiet{func() {}}}
			instances := spend(newBudget(o, time.Now(), 2), 2, 2*time.Millisecond)
			for i, taken := range instances {
				if i < minInstances && (taken[0] > pilotRounds || taken[1] > pilotRounds) {
					t.Errorf("%v rounds in pilot %d", taken, i)
				}
			}
			rest := instances[minInstances : len(instances)-1]
			if len(rest) < minUntil || slices.MinFunc(rest, compareFirst)[0] < slices.MaxFunc(rest, compareFirst)[0]/2 {
				t.Errorf("instances of %v rounds", instances)
			}
		})
	}
}

// TestBudgetOfLoneRows gives the time to the rows that are compared: a row that is alone under
// its workload takes the least number of rounds of each instance.
func TestBudgetOfLoneRows(t *testing.T) {
	path := func(id, workload string) *measuredRow {
		return newRow(rowSpec{path: suites.Path{ID: id}, workload: suites.Workload{Name: workload, Flows: 1}})
	}
	groups, alone := byWorkload([]*measuredRow{path("a", load.TCPRR), path("b", load.TCPStream), path("c", load.TCPRR)})
	if len(groups) != 2 || alone != 1 || len(groups[0]) != 1 || len(groups[1]) != 2 {
		t.Fatalf("%d groups, %d of them of one row", len(groups), alone)
	}
	if groups, alone := byWorkload([]*measuredRow{path("a", load.TCPRR), path("b", load.TCPStream)}); len(groups) != 2 || alone != 0 {
		t.Errorf("no rows to compare: %d groups, %d alone", len(groups), alone)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(Options{Time: time.Minute, Progress: quiet{func() {}}}, time.Now(), 1)
		b.begin()
		taken := []int{0, 0}
		for i, lone := range []bool{true, false} {
			e := b.epoch(1-i, lone)
			for n := e.next(); n > 0; n = e.next() {
				time.Sleep(time.Duration(n) * 10 * time.Millisecond)
				e.took(n, time.Duration(n)*10*time.Millisecond)
				taken[i] += n
			}
		}
		if taken[0] != leastRounds || taken[1] != pilotRounds || b.turns != taken[1] {
			t.Errorf("%v rounds, %d of them count", taken, b.turns)
		}
	})
}

// compareFirst orders instances by the rounds of their first workload.
func compareFirst(a, b []int) int { return a[0] - b[0] }

// TestBudgetOfSamples ends a long run of a quick row before it has more samples than a file
// may hold.
func TestBudgetOfSamples(t *testing.T) {
	for _, o := range []Options{{Time: 20 * time.Minute}, {Time: 20 * time.Minute, Until: 0.001}} {
		o.Progress = quiet{func() {}}
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(o, time.Now(), 1)
			taken := 0
			for b.done == 0 || !b.over(1) {
				b.begin()
				time.Sleep(time.Second) // the labs
				e := b.epoch(0, false)
				for n := e.next(); n > 0; n = e.next() {
					spent := time.Duration(n) * 2 * time.Millisecond
					time.Sleep(spent)
					e.took(n, spent)
					taken += n
				}
				b.end(stats.Components{Lab: 1e-4, Round: 1e-2})
			}
			if taken > result.MaxSamples || taken < result.MaxSamples*9/10 {
				t.Errorf("%+v: %d samples in %d instances", o, taken, b.done)
			}
		})
	}
}

// TestBudgetUntil goes on until the intervals are narrow, but not before minUntil instances.
func TestBudgetUntil(t *testing.T) {
	b := newBudget(Options{Time: time.Hour, Until: 0.01, Progress: quiet{func() {}}}, time.Now(), 1)
	for i := range minUntil + 1 {
		if over := b.over(0.005); over != (i >= minUntil) {
			t.Errorf("after %d instances with narrow intervals: over %t", i, over)
		}
		if b.over(0.5) {
			t.Errorf("after %d instances with wide intervals: over", i)
		}
		b.done++
	}
}
