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

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

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
	if err != nil || o.rounds() < minInterval {
		t.Fatalf("%d rounds, %v", o.rounds(), err)
	}
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
