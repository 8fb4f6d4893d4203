// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/bench/suites"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// buildPlugin builds mustang-cni beside this executable, where the suite expects it.
func buildPlugin(t *testing.T) {
	t.Helper()
	own := testkit.Must(os.Executable())(t)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(filepath.Dir(own),
		"mustang-cni"), "mustang/cmd/mustang-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	testkit.Require(t, err == nil, "go build: %v: %s", err, out)
}

func cniOptions(t *testing.T, only ...string) Options {
	t.Helper()
	testkit.RequireTool(t, "/usr/lib/cni/bridge")
	o := testOptions(t, only...)
	o.Suites, o.Quick, o.Rounds = lookup(t, "cni"), true, 2
	return o
}

// wantNothingLeft checks that a run left nothing but its result file.
func wantNothingLeft(t *testing.T, o Options) {
	t.Helper()
	for _, dir := range []string{o.Out.Path, filepath.Join(o.Store.Dir, "labs")} {
		entries, err := os.ReadDir(dir)
		testkit.Check(t, err == nil, "%v", err)
		for _, entry := range entries {
			testkit.Check(t, entry.Name() == result.FileName, "left: %s", filepath.Join(dir, entry.Name()))
		}
	}
}

// TestCNIMeasuresEveryRow measures every row of suite cni.
func TestCNIMeasuresEveryRow(t *testing.T) {
	o := cniOptions(t)
	o.Rounds, o.batch = 1, 3
	// a sample has ADD and DEL
	o.Suites[0].Workloads = slices.DeleteFunc(o.Suites[0].Workloads, func(w suites.Workload) bool {
		return (w.Name == result.WorkloadCNIAdd) != (w.Flows > 1)
	})
	buildPlugin(t)
	file := runClean(t, o)
	rows := testkit.Must(o.Rows())(t)
	if len(file.Rows) != len(rows) || file.Run.DurationSeconds != 0 {
		t.Errorf("%d rows, want %d; duration %g", len(file.Rows), len(rows), file.Run.DurationSeconds)
	}
	for _, row := range file.Rows {
		if row.Status != result.StatusOK || len(row.Samples) != o.Rounds {
			t.Errorf("%s: %s %s, %d samples", rowName(row), row.Status, row.Reason, len(row.Samples))
			continue
		}
		calls, concurrent := o.batch*o.Rounds, row.Flows == o.batch
		a := row.Evidence.Attachments
		if a == nil || a.Added != calls || a.Removed != calls || !strings.HasPrefix(a.Reached, "10.") ||
			len(row.Evidence.Devices) == 0 {
			t.Errorf("%s: evidence %+v, devices %v, want %d calls", rowName(row), a, row.Evidence.Devices, calls)
		}
		if row.Unit != result.UnitMilliseconds || row.Median <= 0 || row.LatencyUS == nil ||
			row.LatencyUS.P99 < row.LatencyUS.P50 ||
			(row.CallsPerSecond > 0) != concurrent {
			t.Errorf("%s: median %g %s, latency %v, %g a second", rowName(row), row.Median, row.Unit, row.LatencyUS,
				row.CallsPerSecond)
		}
	}
	// Six with services against none, three by the agent against alone, two against the reference
	// of the same link, fifteen against the reference bridge, under two workloads.
	if got, want := len(file.Run.Comparisons), 2*(6+3+2+15); got != want {
		t.Errorf("%d comparisons, want %d", got, want)
	}
}

// TestInterruptedCallsLeaveNothing ends a run while plugins run.
func TestInterruptedCallsLeaveNothing(t *testing.T) {
	for _, at := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			o := cniOptions(t, "bridge cni_add", "ptp")
			o.batch = 10
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			samples := 0
			o.Progress = NewProgress(onRow(func() {
				if samples++; samples == at {
					go cancel()
				}
			}), true)
			_, err := Run(ctx, o)
			testkit.Check(t, errors.Is(err, ErrInterrupted), "error %v, want ErrInterrupted", err)
			wantNothingLeft(t, o)
		})
	}
}

// TestCallsIgnoreDurationAndCount checks the workloads of suite cni, and that its calls are not counted.
func TestCallsIgnoreDurationAndCount(t *testing.T) {
	names := func(o Options) string { return fmt.Sprint(o.workloads(o.Suites[0])) }
	o := Options{Suites: lookup(t, "cni")}
	got := names(o)
	testkit.Check(t, got == "[cni_add cni_del cni_add-100 cni_del-100]", "%v", got)
	testkit.Check(t, !o.anySliced(), "calls take turns")
	o.Quick = true
	got = names(o)
	testkit.Check(t, got == "[cni_add cni_del cni_add-20 cni_del-20]", "%v", got)
	for _, w := range o.workloads(o.Suites[0]) {
		calls := o.calls(w)
		testkit.Check(t, calls == max(quickSequentialCalls, w.Flows), "%s: %d calls", w, calls)
	}
	o.Count = result.ClockInstructions
	for _, s := range o.rowSpecs() {
		err := o.unsupported(s.path)
		testkit.Check(t, errors.Is(err, errCallsNotCounted), "%s is counted: %v", s.path.ID, err)
	}
	o = (Options{Suites: append(lookup(t, suites.Default), lookup(t, "cni")...)})
	testkit.Check(t, o.anySliced(), "no row takes turns")
}
