// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// TestMain also runs the programs that labs start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == tun.RelayCommand {
		if err := tun.Relay(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == load.Command {
		if err := worker.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func lookup(t *testing.T, name string) []suites.Suite {
	t.Helper()
	found := testkit.Must(suites.Lookup(name))(t)
	return found
}

func find(t *testing.T, id string) suites.Path {
	t.Helper()
	for _, p := range lookup(t, suites.Default)[0].Paths {
		if p.ID == id {
			return p
		}
	}
	t.Fatalf("no path %q", id)
	return suites.Path{}
}

func rowName(row result.Row) string {
	return row.ID + " " + suites.Workload{Name: row.Workload, Flows: row.Flows}.String()
}

// testOptions returns the options of a short run of suite pod-links.
func testOptions(t *testing.T, only ...string) Options {
	t.Helper()
	testkit.RequireRoot(t)
	return Options{
		Suites: lookup(t, suites.Default), Only: only, Rounds: 3, Slice: 2 * time.Millisecond, Seed: 7,
		Out: newOut(t), Store: lab.Store{Dir: t.TempDir() + "/state"}, Progress: quiet(),
	}
}

func newOut(t *testing.T) *result.Dir {
	t.Helper()
	out := testkit.Must(result.CreateDir(filepath.Join(t.TempDir(), "out"), "", time.Now(), nil))(t)
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// runClean runs a bench, and checks that it left nothing but its result file, and the root namespace as it was.
func runClean(t *testing.T, o Options) result.File {
	t.Helper()
	before := testkit.RootSnapshot(t)
	file := testkit.Must(Run(t.Context(), o))(t)
	testkit.Check(t, testkit.RootSnapshot(t) == before, "the root namespace has changed")
	wantNothingLeft(t, o)
	return file
}

// TestRunMeasuresEveryRow measures the usual rows of the suite that this kernel supports, and each further path under
// one workload.
func TestRunMeasuresEveryRow(t *testing.T) {
	o := testOptions(t)
	o.Time = 40 * time.Second // a twentieth for traces
	for _, p := range o.Suites[0].Paths {
		only := p.ID
		if p.Extra && p.Workload == "" {
			only += " " + load.TCPRR
		}
		o.Only = append(o.Only, only)
	}
	file := runClean(t, o)
	measured, paths := map[string]bool{}, map[string]bool{}
	byLink := map[string][]result.Row{}
	for _, row := range file.Rows {
		measured[rowName(row)], paths[row.ID] = row.Status == result.StatusOK, true
		byLink[row.Link] = append(byLink[row.Link], row)
	}
	testkit.Check(t, len(paths) == len(o.Suites[0].Paths), "rows of %d paths, want %d", len(paths), len(o.Suites[0].Paths))
	for link, rows := range byLink {
		t.Run(link, func(t *testing.T) { checkRows(t, link, rows, o.Rounds) })
	}
	want := 0
	for _, p := range o.Suites[0].Pairs {
		for _, workload := range o.Suites[0].Workloads {
			if measured[p.Numerator+" "+workload.String()] && measured[p.Denominator+" "+workload.String()] {
				want++
			}
		}
	}
	ranks := func(c result.Comparison) bool { return c.Asks == result.AsksRank }
	pairs := slices.DeleteFunc(slices.Clone(file.Run.Comparisons), ranks)
	testkit.Check(t, len(pairs) == want && len(pairs) != len(file.Run.Comparisons),
		"%d comparisons of %d are of the suite's pairs, want %d", len(pairs), len(file.Run.Comparisons), want)
	checkTraces(t, file)
	stored, err := result.Read(filepath.Join(o.Out.Path, result.FileName))
	testkit.Check(t, err == nil && len(stored.Rows) == len(file.Rows), "the file has %d rows, %v", len(stored.Rows), err)
}

// checkRows checks that all rows of a link mode are measured, or skipped if the kernel lacks the mode.
func checkRows(t *testing.T, link string, rows []result.Row, rounds int) {
	if mode, err := podlink.Lookup(link); err == nil {
		lacking := mode.Probe()
		for _, row := range rows {
			testkit.Check(t, lacking == nil || row.Status == result.StatusSkipped && row.Reason == lacking.Error(),
				"%s: %s %q, want skipped: %v", rowName(row), row.Status, row.Reason, lacking)
		}
		if lacking != nil {
			return
		}
	}
	for _, row := range rows {
		testkit.Check(t, row.Status == result.StatusOK && len(row.Samples) == rounds && !(row.Median <= 0),
			"%s: %s %s, %d samples, median %g", rowName(row), row.Status, row.Reason, len(row.Samples), row.Median)
		testkit.Check(t, row.Workload != load.TCPRR || row.LatencyUS != nil && !(row.LatencyUS.P50 <= 0),
			"%s: no latencies", rowName(row))
		testkit.Check(t, len(row.Evidence.Devices) != 0 && row.Evidence.Client.Peer != "", "%s: no evidence", rowName(row))
	}
}

// TestEachSetupIsMeasured measures a path with each kind of traffic, side by side.
func TestEachSetupIsMeasured(t *testing.T) {
	o := testOptions(t, "veth/pod-ip", "veth/cluster-ip/nftables")
	var err error
	o.Suites, err = suites.Traffic{
		Workloads: load.Workloads(), Request: 100, Response: 3000, Flows: 2, Direction: suites.DirectionBoth, UnderLoad: true,
	}.Apply(o.Suites)
	testkit.Succeed(t, err)
	file, err := Run(t.Context(), o)
	testkit.Succeed(t, err)
	want := 3 * 7
	testkit.Check(t, len(file.Rows) == want, "%d rows, want %d", len(file.Rows), want)
	for _, row := range file.Rows {
		testkit.Check(t, row.Status == result.StatusOK && len(row.Samples) == o.Rounds && !(row.Median <= 0),
			"%v: %s %s, %d samples, median %g", row.Key(), row.Status, row.Reason, len(row.Samples), row.Median)
		if paced := row.Setup.Paced(); paced != (row.Unit == result.UnitMicroseconds) || paced &&
			(row.Offered <= 0 || row.LatencyUS == nil) {
			t.Errorf("%v: %g %s, offered %g", row.Key(), row.Median, row.Unit, row.Offered)
		}
	}
	err = file.Validate()
	testkit.Check(t, err == nil, "%v", err)
}

// TestWrongPathFails measures rows with labs that have another path than the rows claim.
func TestWrongPathFails(t *testing.T) {
	cluster := find(t, "veth+ebpf/cluster-ip")
	for name, test := range map[string]struct {
		change func(*suites.Path)
		reason string
	}{
		"iptables instead of eBPF": {func(p *suites.Path) {
			p.Lab.Datapath, p.Lab.Via = lab.DatapathKernel, lab.ViaIPTables
		}, "tracks"},
		"eBPF instead of nftables":     {func(p *suites.Path) { p.Via = result.ViaNFTables }, "no translated entry"},
		"pod IP instead of cluster IP": {func(p *suites.Path) { p.Connect = p.Listen }, "0 entries"},
		"another link":                 {func(p *suites.Path) { p.Lab.Link = "macvlan" }, "veth-pod-a"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := cluster
			test.change(&wrong)
			o := testOptions(t)
			o.Suites = []suites.Suite{{Name: "wrong", Workloads: o.Suites[0].Workloads, Paths: []suites.Path{wrong}}}
			file := testkit.Must(Run(context.Background(), o))(t)
			for _, row := range file.Rows {
				if row.Status != result.StatusFailed || !strings.Contains(row.Reason, test.reason) || len(row.Samples) > 0 {
					t.Errorf("%s: status %s with %d samples, reason %q; want failed with %q",
						row.Workload, row.Status, len(row.Samples), row.Reason, test.reason)
				}
			}
		})
	}
}

func TestInterruptKeepsFinishedSamples(t *testing.T) {
	o := testOptions(t, "loopback", "veth/pod-ip tcp_rr")
	o.Rounds = 1000
	ctx, cancel := context.WithCancel(context.Background())
	samples := 0
	o.Progress = NewProgress(onRow(func() {
		if samples++; samples == 8 {
			cancel()
		}
	}), true)
	file, err := Run(ctx, o)
	testkit.Require(t, errors.Is(err, ErrInterrupted), "error %v, want ErrInterrupted", err)
	if !file.Run.Interrupted || len(file.Rows) == 0 { // how many have begun depends on the machine's speed
		t.Errorf("interrupted %t, %d rows", file.Run.Interrupted, len(file.Rows))
	}
	total := 0
	for _, row := range file.Rows {
		total += len(row.Samples)
	}
	testkit.Check(t, total >= 8 && total < 3*o.Rounds,
		"%d samples, want the 8 that were done, and the rest of their round", total)
	stored, err := result.Read(filepath.Join(o.Out.Path, result.FileName))
	testkit.Check(t, err == nil && stored.Run.Interrupted, "the file: interrupted %t, %v", stored.Run.Interrupted, err)
}

// TestResetReplacesDeadServer ends a server between two samples: the next sample fails, and after a
// reset samples succeed again.
func TestResetReplacesDeadServer(t *testing.T) {
	o := testOptions(t, "loopback tcp_rr", "veth/pod-ip tcp_rr")
	if _, err := o.withDefaults(); err != nil {
		t.Fatal(err)
	}
	s, err := newTestbed(o)
	testkit.Succeed(t, err)
	defer s.Close()
	row := rowSpec{o.Suites[0], find(t, "veth/pod-ip"), suites.Workload{Name: load.TCPRR, Flows: 1}}
	_, err = s.take(context.Background(), row.path, o.proofSpec(row.path, row.workload))
	testkit.Require(t, err == nil, "%v", err)
	testkit.Succeed(t, s.agents[sharedServer].Close())
	_, err = s.take(context.Background(), row.path, o.proofSpec(row.path, row.workload))
	testkit.Check(t, err != nil, "a sample without a server succeeded")
	testkit.Succeed(t, s.reset(row.path))
	_, err = s.take(context.Background(), row.path, o.proofSpec(row.path, row.workload))
	testkit.Check(t, err == nil, "after the reset: %v", err)
}

// newRun returns a run with a testbed, which the test's end closes.
func newRun(t *testing.T) *run {
	t.Helper()
	o := testkit.Must(testOptions(t).withDefaults())(t)
	bed := testkit.Must(newTestbed(o))(t)
	t.Cleanup(func() { bed.Close() })
	return &run{options: o, testbed: bed, compared: comparisons{}}
}

// TestFailedRowLeavesOthers fails a row while another one has a connection on the same agents: only
// the first one has failed.
func TestFailedRowLeavesOthers(t *testing.T) {
	r := newRun(t)
	workload := suites.Workload{Name: load.TCPCRR, Flows: 1}
	sound := newRow(rowSpec{r.options.Suites[0], find(t, "veth/pod-ip"), workload})
	broken := newRow(rowSpec{r.options.Suites[0], find(t, "veth/pod-ip"), workload})
	broken.spec.path.Connect = netip.AddrPortFrom(broken.spec.path.Connect.Addr(), 1) // without a listener
	testkit.Succeed(t, r.epoch(t.Context(), []*measuredRow{sound, broken}, budgetOf(2)))
	if sound.done() || len(sound.row.Samples) != 2 {
		t.Errorf("the sound row: %s %s, %d samples", sound.row.Status, sound.row.Reason, len(sound.row.Samples))
	}
	testkit.Check(t, broken.row.Status == result.StatusFailed && strings.Contains(broken.row.Reason, "refused"),
		"the broken row: %s %s", broken.row.Status, broken.row.Reason)
	if err := r.epoch(t.Context(), []*measuredRow{sound}, budgetOf(1)); err != nil || sound.done() {
		t.Errorf("after the reset: %v, %s", err, sound.row.Reason)
	}
}

// TestLostConnectionsAreCounted drops a SYN on a path, and its retransmissions: the row counts the connection as
// lost, and goes on.
func TestLostConnectionsAreCounted(t *testing.T) {
	r := newRun(t)
	spec := rowSpec{r.options.Suites[0], find(t, "macvlan/pod-ip"), suites.Workload{Name: load.TCPCRR, Flows: 1}}
	l := testkit.Must(r.testbed.lab(t.Context(), spec.path.Lab))(t)
	server := testkit.Must(l.Namespace(spec.path.Server))(t)
	testkit.Drop(t, server, "tcp flags & (syn|ack) == syn numgen inc mod 30 >= 25") // a SYN that is sent once a second
	row := newRow(spec)
	rounds, opened := 0, 1
	for row.received == row.sent && rounds < 400 { // few connections fit into the turns of a busy machine
		testkit.Succeed(t, r.epoch(t.Context(), []*measuredRow{row}, budgetOf(2)))
		rounds += 2
		// the SYNs of the agent itself were dropped
		if row.done() && strings.Contains(row.row.Reason, "open: ") && opened < 10 {
			row, rounds, opened = newRow(spec), 0, opened+1
		}
	}
	got, _ := row.result()
	if got.Status != result.StatusOK || len(got.Samples) != rounds || got.Lost == 0 || got.LostShare <= 0 ||
		got.LostShare > 0.5 {
		t.Errorf("%s %s: %d samples, %d connections lost, share %g", got.Status, got.Reason, len(got.Samples), got.Lost,
			got.LostShare)
	}
}

// TestDescribeRunHoldsOptions checks that a run's head holds its options and is valid.
func TestDescribeRunHoldsOptions(t *testing.T) {
	o := Options{Suites: []suites.Suite{{Name: "s"}}, Rounds: 6, Slice: 5 * time.Millisecond, Seed: 9, Quick: true}
	head, err := describeRun(o, host.CPUPair{Client: 1, Server: 0})
	testkit.Succeed(t, err)
	if head.Suite != "s" || head.Rounds != 6 || head.SliceSeconds != 0.005 || head.TimeSeconds != 0 ||
		head.DurationSeconds != 0 || head.Seed != 9 ||
		!head.Quick || head.Pinning["client"] != 1 || head.Started.IsZero() || !head.Finished.IsZero() {
		t.Errorf("head %+v", head)
	}
	err = (result.File{Schema: result.Schema, Run: head}).Validate()
	testkit.Check(t, err == nil, "%v", err)
}
