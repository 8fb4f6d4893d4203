// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"math"
	"testing"
	"time"

	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestCPUSplitAddsUp checks the parts of a row's CPU time, and that time which the kernel counted backwards counts
// as 0.
func TestCPUSplitAddsUp(t *testing.T) {
	m := clock.MachineTime{BusySeconds: 0.6, UserSeconds: 0.1, SystemSeconds: 0.3, SoftirqSeconds: 0.2}
	got := splitCPU(m, 100_000)
	if want := (result.CPUSplit{UserUS: 1, SystemUS: 3, SoftirqUS: 2}); math.Abs(got.UserUS-want.UserUS)+
		math.Abs(got.SystemUS-want.SystemUS)+math.Abs(got.SoftirqUS-want.SoftirqUS) > 1e-9 {
		t.Errorf("%+v, want %+v", *got, want)
	}
	m.UserSeconds = -0.01
	if got := splitCPU(m, 100_000).UserUS; got != 0 {
		t.Errorf("%g µs in processes", got)
	}
}

// TestCostOfRow measures a row with an eBPF program. The parts of the CPU time add up to the busy time within the
// kernel's ticks. The program takes a part of a transaction's time.
func TestCostOfRow(t *testing.T) {
	o := testOptions(t, "veth+ebpf/pod-ip tcp_rr", "veth/pod-ip tcp_rr")
	o.Slice = 200 * time.Millisecond
	file, err := Run(context.Background(), o)
	testkit.Succeed(t, err)
	for _, row := range file.Rows {
		testkit.Require(t, row.Status == result.StatusOK && row.CPUSplit != nil,
			"%s: %s %s, %v", row.ID, row.Status, row.Reason, row.CPUSplit)
		units := row.Median * float64(len(row.Samples)) * 2 * o.Slice.Seconds()
		// Each turn reads six counters in ticks of 10 ms, twice.
		ticks := float64(len(row.Samples)*2*6) * 0.01 * 1e6 / units
		s := *row.CPUSplit
		sum := s.UserUS + s.SystemUS + s.SoftirqUS
		testkit.Check(t, !(math.Abs(sum-row.CPUUSPerUnit) > ticks+0.2*row.CPUUSPerUnit) && !(sum <= 0),
			"%s: %+v adds up to %g µs of %g, ticks are %g", row.ID, s, sum, row.CPUUSPerUnit, ticks)
		if row.Datapath != result.DatapathEBPF {
			testkit.Check(t, len(row.BPFNanos) == 0, "%s: programs %+v", row.ID, row.BPFNanos)
			continue
		}
		testkit.Require(t, len(row.BPFNanos) == 1 && row.BPFNanos[0].Program == "from_pod",
			"%s: programs %+v, want from_pod", row.ID, row.BPFNanos)
		if p := row.BPFNanos[0]; p.NanosPerRun <= 0 || p.RunsPerUnit*p.NanosPerRun > 1e9/row.Median || p.RunsPerUnit < 2 {
			t.Errorf("%s: %+v in transactions of %g ns", row.ID, p, 1e9/row.Median)
		}
	}
}
