// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"testing"
	"time"

	"mustang/internal/testkit"
)

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
