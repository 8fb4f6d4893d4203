// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/bench/engine"
	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// engineOptions returns the options of a short run of suite pod-links beside engines.
func engineOptions(t *testing.T, names []string, only ...string) Options {
	t.Helper()
	o := testOptions(t, only...)
	o.Suites, o.Rounds = beside(t, names...), 1
	return o
}

func beside(t *testing.T, names ...string) []suites.Suite {
	t.Helper()
	var engines []engine.Engine
	for _, name := range names {
		e := testkit.Must(engine.Lookup(name))(t)
		engines = append(engines, e)
	}
	found := testkit.Must(suites.Beside(lookup(t, suites.Default), engines))(t)
	return found
}

// TestEnginesMeasureTheSamePaths runs real programs beside the native engine. The evidence of each row proves its path:
// by pod IP, and by cluster IP in each way of translation. The short form has each path once and each program twice.
func TestEnginesMeasureTheSamePaths(t *testing.T) {
	testkit.RequireTool(t, "iperf3")
	testkit.RequireTool(t, "sockperf")
	names := []string{"iperf3", "sockperf"}
	if _, err := exec.LookPath("netperf"); err == nil { // it is not in Debian's section main
		names = append(names, "netperf")
	}
	only, least := []string{"veth/pod-ip", "veth/cluster-ip/iptables", "veth/cluster-ip/ebpf-socket",
		"veth+ebpf/cluster-ip"}, 8
	if testkit.Repeats(0, 1) == 0 {
		for i, path := range only {
			program, workload := "/sockperf ", load.TCPRR
			if i%2 == 1 {
				program, workload = "/iperf3 ", load.TCPStream
			}
			only[i] = path + " " + workload
			only = append(only, path+program+workload)
			if len(names) > 2 {
				only = append(only, path+"/netperf "+workload)
			}
		}
		least = 4
	}
	o := engineOptions(t, names, only...)
	file := runClean(t, o)
	programs := 0
	for _, row := range file.Rows {
		native := row.Engine == engine.Native
		if !native {
			programs++
		}
		testkit.Check(t, native != strings.HasSuffix(row.ID, "/"+row.Engine), "%s was measured by %s", row.ID, row.Engine)
		if row.Status == result.StatusSkipped && row.Engine == "netperf" && row.Via != result.ViaNone {
			programs--
			continue
		}
		if row.Status != result.StatusOK || len(row.Samples) != o.Rounds || !(row.Median > 0) ||
			row.Evidence.Client.Peer == "" {
			t.Errorf("%s %s: %s (%s), %d samples, median %g, %+v", row.ID, row.Workload, row.Status, row.Reason,
				len(row.Samples), row.Median, row.Evidence.Client)
		}
	}
	testkit.Check(t, programs >= least && len(file.Run.Comparisons) == programs,
		"%d rows of programs, %d comparisons", programs, len(file.Run.Comparisons))
	for _, c := range file.Run.Comparisons {
		testkit.Check(t, len(c.Ratios) == o.Rounds && c.CI95 == nil && strings.HasPrefix(c.Numerator, c.Denominator+"/"),
			"comparison %s has %d ratios, interval %v of too few", c.Name, len(c.Ratios), c.CI95)
	}
	testkit.Check(t, file.Run.Versions["iperf3"] != "" && file.Run.DurationSeconds == 1,
		"versions %v, duration %g s", file.Run.Versions, file.Run.DurationSeconds)
}

// TestMissingProgramIsSkippedByName measures the native rows alone.
func TestMissingProgramIsSkippedByName(t *testing.T) {
	o := engineOptions(t, []string{"iperf3"}, "veth/pod-ip")
	t.Setenv("PATH", t.TempDir())
	o.Slice = 10 * time.Millisecond
	file := testkit.Must(Run(context.Background(), o))(t)
	for _, row := range file.Rows {
		want := result.StatusOK
		if row.Engine != engine.Native {
			want = result.StatusSkipped
		}
		if row.Status != want || want == result.StatusSkipped && !strings.Contains(row.Reason, "apt install iperf3") {
			t.Errorf("%s: %s %q, want %s", row.ID, row.Status, row.Reason, want)
		}
	}
	testkit.Check(t, len(file.Rows) == 2, "%d rows, want 2", len(file.Rows))
}

// TestEnginesExcludeOtherWays holds the options that make no sense with engines.
func TestEnginesExcludeOtherWays(t *testing.T) {
	for name, o := range map[string]Options{
		"peer":     {Peer: &PeerOptions{}},
		"counted":  {Count: result.ClockInstructions},
		"fraction": {Duration: 1500 * time.Millisecond},
		"until":    {Until: 0.01},
	} {
		o.Suites = beside(t, "iperf3")
		err := o.Validate()
		testkit.Check(t, err != nil && !strings.Contains(err.Error(), "\n"), "%s: %v", name, err)
	}
	_, err := suites.Beside(lookup(t, "cni"), engine.List())
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "cni"), "suite cni beside engines: %v", err)
	if _, err := engine.Lookup("iperf9"); err == nil || !strings.Contains(err.Error(), "iperf9") ||
		!strings.Contains(err.Error(), "iperf3") {
		t.Errorf("unknown engine: %v", err)
	}
	rows, err := Options{Suites: beside(t, "iperf3"), All: true}.Rows()
	testkit.Succeed(t, err)
	if slices.ContainsFunc(rows,
		func(r result.Row) bool { return r.Engine == "iperf3" && r.Workload == result.WorkloadTCPRR }) {
		t.Error("iperf3 has a row of request/response")
	}
}

// TestUnseenTurnIsTakenAgain counts the turns of a row whose connection is not seen at first,
// never, or whose turn fails otherwise.
func TestUnseenTurnIsTakenAgain(t *testing.T) {
	other := errors.New("no route")
	unseen := fmt.Errorf("netperf: %w", engine.ErrUnseen)
	for _, tt := range []struct {
		name  string
		turns []error // the last one goes on
		taken int
	}{
		{"seen", []error{nil}, 1},
		{"seen in the third turn", []error{unseen, unseen, nil}, 3},
		{"never seen", []error{unseen}, mostTurns},
		{"failed", []error{other}, 1},
		{"failed later", []error{unseen, other}, 2},
	} {
		taken := 0
		err := untilSeen(func() error {
			taken++
			return tt.turns[min(taken, len(tt.turns))-1]
		})
		if want := tt.turns[len(tt.turns)-1]; taken != tt.taken || !errors.Is(err, want) {
			t.Errorf("%s: %d turns and %v, want %d and %v", tt.name, taken, err, tt.taken, want)
		}
	}
}
