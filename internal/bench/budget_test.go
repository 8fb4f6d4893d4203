// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"testing/synctest"
	"time"

	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// costs are the times that the parts of a simulated suite take.
type costs struct {
	build, open, round, shut, renew time.Duration
	workloads                       []string
}

// spend measures a simulated suite, and returns the rounds of each instance by workload.
func (c costs) spend(b *budget) (instances []map[string]int) {
	for ; len(instances) == 0 || !b.over(1); b.end() {
		b.begin(c.workloads...)
		if len(instances) > 0 {
			time.Sleep(c.build)
		}
		taken := map[string]int{}
		for _, workload := range c.workloads {
			time.Sleep(c.open)
			e := b.epoch(workload)
			for n := e.next(); n > 0; n = e.next() {
				b.options.Progress.Row("row", b.left())
				spent := time.Duration(n) * c.round
				time.Sleep(spent)
				e.took(n, spent)
			}
			taken[workload] = e.taken
			time.Sleep(c.shut)
		}
		instances = append(instances, taken)
		time.Sleep(c.renew)
	}
	return instances
}

var three = []string{load.TCPStream, load.TCPRR, load.TCPCRR} // the workloads of the usual suites

// TestBudgetHoldsTime ends within 5 % of the given time, independent of the time of labs, if one instance fits.
// Turns have at least the share in the table.
func TestBudgetHoldsTime(t *testing.T) {
	usual := costs{1500 * time.Millisecond, 200 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond,
		150 * time.Millisecond, three}
	heavy := costs{8 * time.Second, time.Second, 400 * time.Millisecond, 500 * time.Millisecond, time.Second, three}
	for _, tt := range []struct {
		name        string
		time, prove time.Duration
		costs
		least int // instances
		turns float64
	}{
		{"usual", 170 * time.Second, 5 * time.Second, usual, 12, 0.75},
		{"quick", 30 * time.Second, 3 * time.Second, usual, 6, 0.4},
		{"an hour", time.Hour, 5 * time.Second, usual, 250, 0.75},
		{"all rows", 170 * time.Second, 25 * time.Second, heavy, 6, 0.25},
		{"all rows in a minute", time.Minute, 25 * time.Second, heavy, 1, 0.1},
		{"no time after the proof", 20 * time.Second, 19 * time.Second, heavy, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				time.Sleep(tt.prove)
				b := newBudget(Options{Time: tt.time, Progress: quiet()}, started, tt.build, len(three))
				instances := tt.spend(b)
				took, turns := time.Since(started), 0.0
				for _, taken := range instances {
					for _, workload := range three {
						turns += float64(taken[workload]) * tt.round.Seconds() / took.Seconds()
						testkit.Check(t, taken[workload] >= leastRounds, "%v rounds in an instance", taken)
					}
				}
				t.Logf("%v: %d instances, turns %.2f", took, len(instances), turns)
				if tt.name != "no time after the proof" && (took > tt.time*105/100 || tt.least > 2 && took < tt.time*80/100) {
					t.Errorf("took %v of %v", took, tt.time)
				}
				testkit.Check(t, len(instances) >= tt.least && !(turns < tt.turns),
					"%d instances, turns had %.2f of the time, want %d and %.2f", len(instances), turns, tt.least, tt.turns)
			})
		})
	}
}

// TestBudgetOfRounds divides a number of rounds among instances: each workload gets all rounds, and instances are
// alike.
func TestBudgetOfRounds(t *testing.T) {
	for rounds, want := range map[int]int{1: 1, 3: 1, 4: 2, 24: 8, 100: 8, 5000: 8} {
		instances := costs{workloads: three}.spend(newBudget(Options{Rounds: rounds, Progress: quiet()}, time.Now(), 0, 3))
		sums := map[string]int{}
		for _, taken := range instances {
			for _, workload := range three {
				sums[workload] += taken[workload]
			}
		}
		for _, workload := range three {
			testkit.Check(t, sums[workload] == rounds && len(instances) == want,
				"%d rounds: %v in %d instances, want %d", rounds, sums, len(instances), want)
		}
	}
}

// TestBudgetOfSamples ends a long run of a quick row before it has more samples than a file may hold.
func TestBudgetOfSamples(t *testing.T) {
	for _, o := range []Options{{Time: 20 * time.Minute}, {Time: 20 * time.Minute, Until: 0.001}} {
		o.Progress = quiet()
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(o, time.Now(), time.Second, 1)
			taken := 0
			for _, of := range (costs{build: time.Second, round: 2 * time.Millisecond, workloads: three[:1]}).spend(b) {
				taken += of[three[0]]
			}
			if taken > result.MaxSamples || taken < result.MaxSamples*9/10 {
				t.Errorf("%+v: %d samples in %d instances", o, taken, b.done)
			}
		})
	}
}

// TestBudgetUntil goes on until the intervals are narrow, but not before minUntil instances.
func TestBudgetUntil(t *testing.T) {
	b := newBudget(Options{Time: time.Hour, Until: 0.01, Progress: quiet()}, time.Now(), time.Second, 1)
	for i := range minUntil + 1 {
		over := b.over(0.005)
		testkit.Check(t, over == (i >= minUntil), "after %d instances with narrow intervals: over %t", i, over)
		testkit.Check(t, !b.over(0.5), "after %d instances with wide intervals: over", i)
		b.done++
	}
}
