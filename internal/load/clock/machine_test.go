// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

const statText = `cpu  100 1 50 1000 20 3 7 9 0 0
cpu0 50 1 25 500 10 3 7 4 0 0
cpu1 50 0 25 500 10 0 0 5 0 0
intr 123 0 9 0
ctxt 77
softirq 5000 1 300 40 2500 6 0 8 90 0 10
`

func TestParseStat(t *testing.T) {
	got := parseStat([]byte(statText))
	want := sample{cpus: 2, user: 101, system: 50, idle: 1000, iowait: 20, softirq: 7, steal: 9, netTX: 40, netRX: 2500}
	testkit.Check(t, got == want, "got %+v, want %+v", got, want)
	got = parseStat([]byte("cpu  1 2\ncpu0"))
	testkit.Check(t, got.cpus == 1 && got.idle == 0, "short file: %+v", got)
}

func TestMachineTime(t *testing.T) {
	start := time.Now()
	from := sample{at: start, cpus: 2, idle: 1000, iowait: 20, steal: 5, netRX: 10, netTX: 1}
	to := sample{at: start.Add(2 * time.Second), cpus: 2, idle: 1100, iowait: 19, steal: 15, netRX: 110, netTX: 4}
	got := to.since(from)
	// 4 CPU seconds, 1 idle, 0.1 stolen; an iowait that steps back counts as 0.
	if math.Abs(got.BusySeconds-2.9) > 1e-9 || math.Abs(got.StealSeconds-0.1) > 1e-9 || got.Seconds != 2 ||
		got.NetRX != 100 || got.NetTX != 3 {
		t.Errorf("got %+v", got)
	}
}

// TestWindow keeps one thread busy, which the machine's clock must see.
func TestWindow(t *testing.T) {
	w, err := OpenMachine()
	testkit.Succeed(t, err)
	defer w.Close()
	testkit.Succeed(t, w.Begin())
	spin(150 * time.Millisecond)
	machine, err := w.End()
	testkit.Succeed(t, err)
	testkit.Check(t, !(machine.BusySeconds < 0.1), "machine busy for %g s, want 0.15 s and more", machine.BusySeconds)
}

// spin uses a CPU until the process has had it for a time.
func spin(most time.Duration) {
	used := func() time.Duration {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
		return time.Duration(ts.Nano())
	}
	for start := used(); used()-start < most; {
		continue
	}
}

const timerListText = `Timer List Version: v0.10
HRTIMER_MAX_CLOCK_BASES: 8
now at 3570000000 nsecs

cpu: 0
 clock 0:
  .idle_tick      : 1000000 nsecs
  .tick_stopped   : 0
  .idle_jiffies   : 4294893116
  .idle_calls     : 5
  .idle_sleeps    : 5
  .idle_entrytime : 3560000000 nsecs
  .idle_sleeptime : 976169739 nsecs
  .iowait_sleeptime: 12 nsecs
cpu: 1
  .idle_sleeptime : 31 nsecs
`

func TestParseTimerList(t *testing.T) {
	idle, cpus := parseTimerList([]byte(timerListText))
	testkit.Check(t, idle == 976169770 && cpus == 2, "idle for %d ns on %d CPUs", idle, cpus)
	_, cpus = parseTimerList([]byte("cpu: 0\n"))
	testkit.Check(t, cpus == 0, "%d CPUs of which nothing is told", cpus)
}

// TestExactWindow keeps one thread busy: the exact clock must see it, and no more than all CPUs could spend.
func TestExactWindow(t *testing.T) {
	testkit.RequireRoot(t)
	w, err := OpenExact()
	testkit.Succeed(t, err)
	defer w.Close()
	start := time.Now()
	testkit.Succeed(t, w.Begin())
	spin(50 * time.Millisecond)
	_, err = w.End()
	testkit.Require(t, err == nil, "%v", err)
	if most := uint64(time.Since(start)) * uint64(w.busy.cpus); w.BusyNanos < 50e6 || w.BusyNanos > most {
		t.Errorf("busy for %d ns, want %d to %d", w.BusyNanos, int(50e6), most)
	}
}

// TestLoopCheck gives the check a clock that counts instructions, and others.
func TestLoopCheck(t *testing.T) {
	// ticking simulates a machine on which each instruction takes so many nanoseconds.
	ticking := func(each float64) error {
		now := time.Unix(0, 0)
		l := loop{"playing", 4, func(turns uint64) { now = now.Add(time.Duration(float64(turns*4) * each)) }}
		return l.check(func() time.Time { return now })
	}
	err := ticking(1)
	testkit.Check(t, err == nil, "a clock that counts: %v", err)
	for _, each := range []float64{0.25, 0.9, 1.1, 5} {
		err := ticking(each)
		testkit.Check(t, errors.Is(err, ErrNotCounting), "%g ns per instruction: %v", each, err)
	}
}

// TestSpin checks the time of many turns: the shortest run was not interrupted. A spinner made while other programs ran
// may be too slow or too fast; then the test makes another one.
func TestSpin(t *testing.T) {
	for _, want := range []time.Duration{200 * time.Nanosecond, 5 * time.Microsecond} {
		testkit.Eventually(t, 20*time.Second, func() error {
			if took := shortestTurn(NewSpinner(want)); took < want*7/10 || took > want*15/10 {
				return fmt.Errorf("%v instead of %v", took, want)
			}
			return nil
		})
	}
	s := NewSpinner(0)
	testkit.Check(t, s.turns == 0, "%d turns for no time", s.turns)
}

// shortestTurn returns how long a turn of the spinner takes, of the shortest of many runs.
func shortestTurn(s *Spinner) time.Duration {
	const times = 1000
	least := time.Hour
	for range 50 {
		start := time.Now()
		for range times {
			s.Spin()
		}
		least = min(least, time.Since(start)/times)
	}
	return least
}
