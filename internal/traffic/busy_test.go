// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	if idle, cpus := parseTimerList([]byte(timerListText)); idle != 976169770 || cpus != 2 {
		t.Errorf("idle for %d ns on %d CPUs", idle, cpus)
	}
	if _, cpus := parseTimerList([]byte("cpu: 0\n")); cpus != 0 {
		t.Errorf("%d CPUs of which nothing is told", cpus)
	}
}

// TestBusyClock lets this thread work and then sleep: the first counts.
func TestBusyClock(t *testing.T) {
	testkit.RequireRoot(t)
	clock, err := openBusyClock()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.close()
	if err := clock.begin(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for began := processCPU(); processCPU()-began < 50*time.Millisecond; {
		continue
	}
	elapsed := time.Since(start)
	busy, err := clock.end()
	if err != nil {
		t.Fatal(err)
	}
	// Other CPUs may have idled all the time, or not at all.
	if most := uint64(elapsed+100*time.Millisecond) * uint64(clock.cpus); busy < 50e6 || busy > most {
		t.Errorf("busy for %d ns, want %d to %d", busy, int(50e6), most)
	}
}

// TestExact asks for the exact busy time of a run: it is there, and not more than
// all CPUs had.
func TestExact(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	for _, workload := range []string{TCPRR, UDPStream} {
		spec := p.spec(workload)
		spec.Limit, spec.Settle, spec.Exact = 200, 10, true
		if workload == UDPStream {
			spec.Window = 8
		}
		m, err := p.client.Run(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if most := (m.Seconds + 0.1) * 1e9 * 1024; m.BusyNanos == 0 || float64(m.BusyNanos) > most {
			t.Errorf("%s: busy for %d ns in %g s", workload, m.BusyNanos, m.Seconds)
		}
		if forth, back := m.Packets(); forth != 200 || back != map[string]uint64{TCPRR: 200, UDPStream: 25}[workload] {
			t.Errorf("%s: %d packets and %d back", workload, forth, back)
		}
		spec.Exact = false
		if m, err = p.client.Run(t.Context(), spec); err != nil || m.BusyNanos != 0 {
			t.Errorf("%s: %d ns that nobody asked for, %v", workload, m.BusyNanos, err)
		}
	}
}

// TestPriority checks that the threads with load, and no others, are real-time
// ones.
func TestPriority(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "priority")
	o := agentOptions(ns)
	o.Priority = 1
	p := pair{ns: ns, server: startAgent(t, o), client: startAgent(t, o)}
	if err := p.server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	done := runAsync(t.Context(), p, TCPRR)
	awaitTraffic(t, p)
	for name, a := range map[string]*Agent{"client": p.client, "server": p.server} {
		if fifo, all := realtime(t, a.PID()); fifo != 1 || all < 2 {
			t.Errorf("%s: %d of %d threads are real-time ones, want 1", name, fifo, all)
		}
	}
	if err := p.server.Close(); err != nil {
		t.Fatal(err)
	}
	awaitError(t, done)
}

// realtime counts the threads of a process under SCHED_FIFO, and all of them.
func realtime(t *testing.T, pid int) (fifo, all int) {
	t.Helper()
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range threads {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest) // from the third on, see proc_pid_stat(5)
		if all++; fields[41-3] == strconv.Itoa(unix.SCHED_FIFO) {
			fifo++
		}
	}
	return fifo, all
}
