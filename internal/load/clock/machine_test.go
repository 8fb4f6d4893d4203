// SPDX-License-Identifier: Apache-2.0

package clock

import (
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
