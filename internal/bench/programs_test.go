// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

func pinnedProgram(t *testing.T, dir, name string, instructions int) (*ebpf.Program, string) {
	t.Helper()
	body := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for range instructions {
		body = append(body, asm.Mul.Imm(asm.R0, 3))
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "long_program", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: append(body, asm.Return()),
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = p.Close() })
	pin := filepath.Join(dir, name)
	testkit.Succeed(t, p.Pin(pin))
	return p, pin
}

// runProgram runs a program some times. One call is one run: the kernel ends a call of several at a signal, and the
// library then repeats it all.
func runProgram(t *testing.T, p *ebpf.Program, times int) {
	t.Helper()
	for range times {
		_, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 1})
		testkit.Require(t, err == nil, "%v", err)
	}
}

// TestRunsAreCountedWhileEnabled checks that just the runs between enableStats and Close are counted, and that runs
// of programs with one name are added up. A program of 50,000 multiplications takes longer than an empty one.
func TestRunsAreCountedWhileEnabled(t *testing.T) {
	testkit.RequireRoot(t)
	dir := testkit.BPFFS(t)
	first, firstPin := pinnedProgram(t, dir, "first", 50_000)
	second, secondPin := pinnedProgram(t, dir, "second", 50_000)
	pins := []string{firstPin, secondPin}
	runProgram(t, first, 10)
	before := testkit.Must(readRuns(pins))(t)
	stats := testkit.Must(enableStats())(t)
	runProgram(t, first, 100)
	runProgram(t, second, 20)
	after, err := readRuns(pins)
	testkit.Succeed(t, err)
	testkit.Succeed(t, stats.Close())
	runs := after["long_program"].count - before["long_program"].count
	testkit.Check(t, len(after) == 1 && runs == 120, "%d programs, %d runs, want 120 of one", len(after), runs)
	got := stats.nanos(before["long_program"], after["long_program"])
	testkit.Check(t, !(got <= stats.empty), "%g ns a run, an empty program takes %g", got, stats.empty)
	if none := stats.nanos(programRuns{}, programRuns{}); none != 0 || stats.empty <= 0 {
		t.Errorf("no run takes %g ns, an empty program %g", none, stats.empty)
	}
	_, err = readRuns([]string{filepath.Join(dir, "none")})
	testkit.Check(t, err != nil, "a program that is not pinned has statistics")
}

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
	file := testkit.Must(Run(context.Background(), o))(t)
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

// checkTraces checks that the steps of some rows are in the file, for both directions.
func checkTraces(t *testing.T, file result.File) {
	t.Helper()
	traced := map[string]bool{}
	for _, tr := range file.Run.Traces {
		testkit.Check(t, !traced[tr.ID], "%s was traced twice", tr.ID)
		traced[tr.ID] = true
		seen := map[string]bool{}
		for _, s := range tr.Steps {
			seen[s.Direction+" "+s.Kind] = true
		}
		testkit.Check(t, seen["request send"] && seen["reply send"] && !(tr.UntracedNS <= 0),
			"%s: %d steps, %g ns without tracing", tr.ID, len(tr.Steps), tr.UntracedNS)
	}
	testkit.Check(t, len(traced) != 0, "no row was traced")
}

// TestTracedRows checks that each path is traced once, pod IPs first and what connects none last.
func TestTracedRows(t *testing.T) {
	var rows []*measuredRow
	for _, spec := range (Options{Suites: lookup(t, suites.Default)}).rowSpecs() {
		rows = append(rows, newRow(spec))
	}
	var got []string
	cluster := false
	for _, row := range tracedRows(rows) {
		p := row.spec.path
		if slices.Contains(got, p.ID) || p.Repeats != "" || p.Lab.BigTCP || cluster && p.Target != result.TargetClusterIP &&
			!p.Baseline {
			t.Errorf("%s after %v", p.ID, got)
		}
		got, cluster = append(got, p.ID), cluster || p.Target == result.TargetClusterIP
	}
	testkit.Check(t, slices.Contains(got, "veth/pod-ip") && cluster, "traced rows: %v", got)
	rows = nil
	for _, spec := range (Options{Suites: append(lookup(t, "docker"), lookup(t, "cni")...)}).rowSpecs() {
		rows = append(rows, newRow(spec))
	}
	for _, row := range tracedRows(rows) {
		if p := row.spec.path; p.Lab.Topology == lab.TopologyDocker || p.Plugin != nil {
			t.Errorf("%s %s would be traced", row.row.Suite, p.ID)
		}
	}
}

// TestCountNeedsCountingClock counts instructions if the machine's clock does, and checks that Run refuses
// to otherwise: time must not be reported as instructions.
func TestCountNeedsCountingClock(t *testing.T) {
	o := testOptions(t, "veth/pod-ip", "veth+ebpf")
	o.Rounds, o.Duration, o.Count = 0, 0, result.ClockInstructions
	counting := clock.CheckCounting()
	file, err := Run(context.Background(), o)
	if counting != nil {
		testkit.Check(t, errors.Is(err, clock.ErrNotCounting) && !strings.Contains(err.Error(), "\n") && len(file.Rows) == 0,
			"error %v, %d rows; want one line", err, len(file.Rows))
		_, err := os.Stat(filepath.Join(o.Out.Path, result.FileName))
		testkit.Check(t, err != nil, "a result was written")
		return
	}
	testkit.Succeed(t, err)
	testkit.Check(t, file.Run.Counted() && len(file.Rows) != 0, "clock %q, %d rows", file.Run.Clock, len(file.Rows))
	for _, row := range file.Rows {
		if row.Status != result.StatusOK {
			t.Errorf("%s: %s %s", rowName(row), row.Status, row.Reason)
			continue
		}
		low, high := row.Samples[0], row.Samples[0]
		for _, v := range row.Samples {
			low, high = min(low, v), max(high, v)
		}
		t.Logf("%-40s %8.1f %s, spread %.4f", rowName(row), row.Median, row.Unit, high/low-1)
		testkit.Check(t, !(high/low > 1.01),
			"%s: samples from %.0f to %.0f, which should repeat to a hundredth", rowName(row), low, high)
		testkit.Check(t, !(row.Median < 2000) && !(row.Median > 1e6), "%s: %g %s", rowName(row), row.Median, row.Unit)
	}
	for _, c := range file.Run.Comparisons {
		testkit.Check(t, !c.AA || !(math.Abs(c.Ratio-1) > 0.005), "%s, %s: A/A ratio %g", c.Name, c.Workload, c.Ratio)
	}
}

func TestCountedSpecsAreExact(t *testing.T) {
	o, err := Options{Suites: lookup(t, suites.Default), Count: result.ClockInstructions}.withDefaults()
	testkit.Require(t, err == nil && o.rounds() >= minInterval, "%d rounds, %v", o.rounds(), err)
	for _, wrong := range []Options{{Count: "sheep"}, {Count: result.ClockInstructions, Duration: time.Second}} {
		wrong.Suites = lookup(t, suites.Default)
		testkit.Check(t, wrong.Validate() != nil, "%+v was accepted", wrong)
	}
	for _, workload := range o.workloads(o.Suites[0]) {
		row := rowSpec{o.Suites[0], o.Suites[0].Paths[0], workload}
		for _, spec := range []load.Spec{o.spec(row.path, row.workload), o.proofSpec(row.path, row.workload)} {
			err := spec.Validate()
			testkit.Check(t, err == nil && spec.Exact && spec.Limit != 0, "%+v: %v", spec, err)
		}
	}
}

// TestCountedPoliciesCarryTCP: policies of the suite allow TCP alone, and a row of UDP fails.
func TestCountedPoliciesCarryTCP(t *testing.T) {
	counted := Options{Count: result.ClockInstructions}
	for name, want := range map[string][]string{"policy": {load.TCPRR}, suites.Default: {load.UDPStream, load.TCPRR}} {
		var got []string
		for _, w := range counted.workloads(lookup(t, name)[0]) {
			got = append(got, w.Name)
		}
		testkit.Check(t, slices.Equal(got, want), "%s: %v, want %v", name, got, want)
	}
}

// TestFigureFollowsClock checks the figures of samples of both clocks.
func TestFigureFollowsClock(t *testing.T) {
	counting, timing := Options{Count: result.ClockInstructions}, Options{}
	packets := load.Measurement{Workload: load.UDPStream, Count: 2000, Sent: 10, Received: 10, BusyNanos: 50_000,
		Rate: 7, Unit: "Gbit/s", CPUUnit: "MB", Machine: clock.MachineTime{NetRX: 18, NetTX: 2}}
	f, err := counting.figure(packets)
	if err != nil || f.value != 5000 || f.unit != result.UnitPerPacket || f.cpu != 0 || f.softirqs != 2 || f.timed() {
		t.Errorf("packets: %+v, %v", f, err)
	}
	transactions := load.Measurement{Workload: load.TCPRR, Count: 4, BusyNanos: 1000}
	f, err = counting.figure(transactions)
	testkit.Check(t, err == nil && f.value == 250 && f.unit == result.UnitPerTransaction, "transactions: %+v, %v", f, err)
	f, err = timing.figure(packets)
	testkit.Check(t, err == nil && f.value == 7 && f.unit == "Gbit/s" && f.timed(), "time: %+v, %v", f, err)
	lossy := packets
	lossy.Received--
	_, err = counting.figure(lossy)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "1 of 10"), "with a lost packet: %v", err)
	packets.BusyNanos = 0
	_, err = counting.figure(packets)
	testkit.Check(t, err != nil, "a figure without counted instructions")
}
