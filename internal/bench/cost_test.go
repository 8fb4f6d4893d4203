// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"math"
	"testing"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// TestCPUSplitAddsUp checks the parts of a row's CPU time, and that time which the kernel
// counted backwards is none.
func TestCPUSplitAddsUp(t *testing.T) {
	m := clock.MachineTime{BusySeconds: 0.6, UserSeconds: 0.1, SystemSeconds: 0.3, SoftirqSeconds: 0.2}
	got := splitCPU(m, 100_000)
	if want := (result.CPUSplit{UserUS: 1, SystemUS: 3, SoftirqUS: 2}); math.Abs(got.UserUS-want.UserUS)+math.Abs(got.SystemUS-want.SystemUS)+math.Abs(got.SoftirqUS-want.SoftirqUS) > 1e-9 {
		t.Errorf("%+v, want %+v", *got, want)
	}
	m.UserSeconds = -0.01
	if got := splitCPU(m, 100_000).UserUS; got != 0 {
		t.Errorf("%g µs in processes", got)
	}
}

// TestCostOfRow measures a row with an eBPF program: the parts of the CPU time add up to
// the busy time within the kernel's ticks, and the program takes a part of a transaction's
// time.
func TestCostOfRow(t *testing.T) {
	o := testOptions(t, "veth+ebpf/pod-ip tcp_rr", "veth/pod-ip tcp_rr")
	o.Slice = 200 * time.Millisecond
	file, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range file.Rows {
		if row.Status != result.StatusOK || row.CPUSplit == nil {
			t.Fatalf("%s: %s %s, %v", row.ID, row.Status, row.Reason, row.CPUSplit)
		}
		units := row.Median * float64(len(row.Samples)) * 2 * o.Slice.Seconds()
		// Each turn reads six counters in ticks of 10 ms, twice.
		ticks := float64(len(row.Samples)*2*6) * 0.01 * 1e6 / units
		s := *row.CPUSplit
		sum := s.UserUS + s.SystemUS + s.SoftirqUS
		if math.Abs(sum-row.CPUUSPerUnit) > ticks+0.2*row.CPUUSPerUnit || sum <= 0 {
			t.Errorf("%s: %+v adds up to %g µs of %g, ticks are %g", row.ID, s, sum, row.CPUUSPerUnit, ticks)
		}
		if row.Datapath != result.DatapathEBPF {
			if len(row.BPFNanos) > 0 {
				t.Errorf("%s: programs %+v", row.ID, row.BPFNanos)
			}
			continue
		}
		if len(row.BPFNanos) != 1 || row.BPFNanos[0].Program != "from_pod" {
			t.Fatalf("%s: programs %+v, want from_pod", row.ID, row.BPFNanos)
		}
		if p := row.BPFNanos[0]; p.NanosPerRun <= 0 || p.RunsPerUnit*p.NanosPerRun > 1e9/row.Median || p.RunsPerUnit < 2 {
			t.Errorf("%s: %+v in transactions of %g ns", row.ID, p, 1e9/row.Median)
		}
	}
}

// TestProgramRunsArePackets checks that the kernel's statistics count a run for each packet:
// as many as the program itself counts, and as the pods send.
func TestProgramRunsArePackets(t *testing.T) {
	o := testOptions(t, "veth+ebpf/pod-ip tcp_rr")
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	tb, err := newTestbed(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tb.Close(); err != nil {
			t.Error(err)
		}
	}()
	path, ctx := find(t, "veth+ebpf/pod-ip"), context.Background()
	s, err := tb.open(ctx, path, load.Spec{Workload: load.TCPRR, Target: path.Connect})
	if err != nil {
		t.Fatal(err)
	}
	pins, err := s.lab.Datapath().ProgramPins()
	if err != nil {
		t.Fatal(err)
	}
	stats, err := enableStats()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stats.Close() }()
	before, err := readRuns(pins)
	if err != nil {
		t.Fatal(err)
	}
	recorder := evidence.Recorder{Lab: s.lab}
	if err := recorder.Start(); err != nil {
		t.Fatal(err)
	}
	turn, err := s.client.Slices(ctx, []load.Slice{{Conn: s.connection.ID, Lead: -1, Duration: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := recorder.Stop(evidence.Flow{Path: path.Path})
	if err != nil {
		t.Fatal(err)
	}
	after, err := readRuns(pins)
	if err != nil {
		t.Fatal(err)
	}
	packets := uint64(0)
	for _, d := range seen[0].Devices {
		if d.Name == lab.IfName {
			packets += d.TxPackets
		}
	}
	// The counters are read one after the other: a stray packet, such as a late acknowledgement, may fall between.
	near := func(a, b uint64) bool { return max(a, b)-min(a, b) <= 3 }
	runs, counted := after["from_pod"].count-before["from_pod"].count, seen[0].ProgramRuns["from_pod"]
	if !near(runs, counted) || !near(counted, packets) || counted < 2*turn[0].Count || turn[0].Count == 0 {
		t.Errorf("%d runs by the kernel, %d by the program, %d packets of %d transactions",
			runs, counted, packets, turn[0].Count)
	}
}
