// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// TestFiguresFit runs each workload over each family and checks that the figures fit each other.
func TestFiguresFit(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		p := newPair(t, host)
		for _, workload := range load.Workloads() {
			t.Run(workload+"/"+host, func(t *testing.T) {
				start := time.Now()
				m, err := p.client.Run(t.Context(), p.spec(workload))
				testkit.Succeed(t, err)
				checkWindow(t, p, m, time.Since(start))
				checkFlows(t, m, 1)
				switch workload {
				case load.TCPStream:
					checkRate(t, m, "Gbit/s", float64(m.Count)*8/1e9)
				case load.UDPStream:
					checkRate(t, m, "Gbit/s", float64(m.Count)*8/1e9)
					checkDatagrams(t, m)
				default:
					checkRate(t, m, "transactions/s", float64(m.Count))
					checkHistogram(t, m)
				}
			})
		}
	}
}

// checkWindow checks what holds for every workload, on a loaded machine too. elapsed is
// the time that the run took at most.
func checkWindow(t *testing.T, p pair, m load.Measurement, elapsed time.Duration) {
	t.Helper()
	testkit.Check(t, m.Workload == load.UDPRR || m.Count != 0 && !(m.Units <= 0), "count %d, units %g", m.Count, m.Units)
	most := elapsed.Seconds()
	testkit.Check(t, !(m.Seconds < 0.2) && !(m.Seconds > most), "window of %g s, want 0.2 to %g", m.Seconds, most)
	testkit.Check(t, !(m.Machine.Seconds <= 0) && !(m.Machine.Seconds > most) && !(m.Machine.Seconds < m.Seconds),
		"machine's window of %g s, the run's of %g s", m.Machine.Seconds, m.Seconds)
	testkit.Check(t, !(m.Machine.BusySeconds <= 0) && !(m.Machine.BusySeconds > m.Machine.Seconds*1024),
		"machine busy for %g s", m.Machine.BusySeconds)
	if m.CPUMicrosPerUnit() <= 0 || m.Workload == load.TCPRR && m.SoftirqsPerUnit() <= 0 {
		t.Errorf("CPU %g us and %g softirqs per unit", m.CPUMicrosPerUnit(), m.SoftirqsPerUnit())
	}
	testkit.Check(t, m.ClientPeer == p.server.Address() && m.ServerLocal == m.ClientPeer && m.ServerPeer == m.ClientLocal,
		"addresses do not fit: %v %v %v %v", m.ClientLocal, m.ClientPeer, m.ServerLocal, m.ServerPeer)
	want := map[bool]string{false: "reno"}[strings.HasPrefix(m.Workload, "udp")] // of agentOptions
	testkit.Check(t, m.ClientCongestion == want, "congestion control %q, want %q", m.ClientCongestion, want)
}

func checkRate(t *testing.T, m load.Measurement, unit string, amount float64) {
	t.Helper()
	testkit.Check(t, m.Unit == unit && !(math.Abs(m.Rate-amount/m.Seconds) > 1e-9*m.Rate),
		"rate %g %s, want %g %s", m.Rate, m.Unit, amount/m.Seconds, unit)
}

func checkHistogram(t *testing.T, m load.Measurement) {
	t.Helper()
	h := m.Histogram
	testkit.Require(t, h != nil && uint64(h.TotalCount()) == m.Count, "histogram %v for %d transactions", h, m.Count)
	if m.Sent > m.Received {
		return // a lost one lacks a latency
	}
	// One after another, they fill the window.
	sum := h.Mean() * float64(m.Count) / 1e9
	testkit.Check(t, !(math.Abs(sum/m.Seconds-1) > 0.01), "latencies sum up to %g s of %g s", sum, m.Seconds)
	if h.Min() < 1000 || h.ValueAtPercentile(50) > h.ValueAtPercentile(99) {
		t.Errorf("least latency %d ns, p50 %d, p99 %d", h.Min(), h.ValueAtPercentile(50), h.ValueAtPercentile(99))
	}
}

// TestLimitIsExact does a set number of transactions, which must be counted.
func TestLimitIsExact(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	for _, limit := range []uint64{1, 1234} {
		spec := p.spec(load.TCPRR)
		spec.Limit, spec.Settle, spec.Duration = limit, 10, 0
		m, err := p.client.Run(t.Context(), spec)
		testkit.Succeed(t, err)
		if m.Count != limit || uint64(m.Histogram.TotalCount()) != limit {
			t.Errorf("%d transactions: counted %d with %d latencies", limit, m.Count, m.Histogram.TotalCount())
		}
	}
}

// TestThreadsArePinned checks that every thread of an agent stays on its CPU.
func TestThreadsArePinned(t *testing.T) {
	o := agentOptions(nil)
	o.CPU = 0
	a := startAgent(t, o)
	testkit.Succeed(t, a.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	m, err := a.Run(t.Context(), load.Spec{Workload: load.TCPRR, Target: a.Address(), Duration: 20 * time.Millisecond})
	testkit.Succeed(t, err)
	testkit.Check(t, m.Count != 0, "no transactions on one CPU")
	for tid, allowed := range threadCPUs(t, a.PID()) {
		testkit.Check(t, allowed == "0", "thread %s may run on CPUs %s", tid, allowed)
	}
}

// TestExactBusyTime checks that a run has the exact busy time if the spec requests it, and that it is at most the
// time of all CPUs.
func TestExactBusyTime(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	for _, workload := range []string{load.TCPRR, load.UDPStream} {
		spec := p.spec(workload)
		spec.Limit, spec.Settle, spec.Exact = 200, 10, true
		if workload == load.UDPStream {
			spec.Window = 8
		}
		start := time.Now()
		m, err := p.client.Run(t.Context(), spec)
		testkit.Succeed(t, err)
		if most := time.Since(start).Seconds() * 1e9 * 1024; m.BusyNanos == 0 || float64(m.BusyNanos) > most {
			t.Errorf("%s: busy for %d ns in %g s", workload, m.BusyNanos, m.Seconds)
		}
		if sent, received := m.Packets(); sent != 200 || received != map[string]uint64{load.TCPRR: 200,
			load.UDPStream: 25}[workload] {
			t.Errorf("%s: %d packets and %d back", workload, sent, received)
		}
		spec.Exact = false
		if m, err = p.client.Run(t.Context(), spec); err != nil || m.BusyNanos != 0 {
			t.Errorf("%s: %d ns that the spec does not ask for, %v", workload, m.BusyNanos, err)
		}
	}
}

// TestLoadThreadsAreRealTime checks that the threads with load, and no others, have the agent's priority.
func TestLoadThreadsAreRealTime(t *testing.T) {
	testkit.RequireRoot(t)
	ns := testkit.Namespace(t, "priority")
	o := agentOptions(ns)
	o.Priority = 1
	p := pair{ns: ns, server: startAgent(t, o), client: startAgent(t, o)}
	testkit.Succeed(t, p.server.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")))
	done := slicesAsync(t.Context(), p.client, open(t, p.client, p.persistent(load.TCPRR)))
	awaitTraffic(t, p)
	for name, a := range map[string]*load.Agent{"client": p.client, "server": p.server} {
		fifo, all := realtime(t, a.PID())
		testkit.Check(t, fifo == 1 && all >= 2, "%s: %d of %d threads are real-time ones, want 1", name, fifo, all)
	}
	testkit.Succeed(t, p.server.Close())
	awaitError(t, done)
}

// realtime counts the threads of a process under SCHED_FIFO, and all of them.
func realtime(t *testing.T, pid int) (fifo, all int) {
	t.Helper()
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	testkit.Succeed(t, err)
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

func threadCPUs(t *testing.T, pid int) map[string]string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	testkit.Require(t, err == nil && len(files) != 0, "threads of %d: %v", pid, err)
	out := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				out[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(value)
			}
		}
	}
	return out
}
