// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
)

// TestMain also is the programs that labs start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lab.RelayName {
		if err := lab.Relay(context.Background(), os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "traffic-agent" {
		if err := traffic.Main(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// quiet is a Reporter that calls a function at each sample.
type quiet struct{ sample func() }

func (quiet) Note(string)              {}
func (quiet) Start(int, time.Duration) {}
func (q quiet) Sample(string)          { q.sample() }
func (quiet) Done()                    {}
func (quiet) Round(int, int)           {}
func (quiet) Finish()                  {}

func testOptions(t *testing.T, only ...string) Options {
	t.Helper()
	testkit.RequireRoot(t)
	return Options{
		Suites: []Suite{podLinks()}, Only: only, Rounds: 3, Duration: 20 * time.Millisecond, Seed: 7,
		Out: filepath.Join(t.TempDir(), "out"), Store: lab.Store{Dir: t.TempDir() + "/state"}, Progress: quiet{func() {}},
	}
}

// TestRun measures every row of the suite that this kernel can have.
func TestRun(t *testing.T) {
	o := testOptions(t)
	before := testkit.RootSnapshot(t)
	file, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if testkit.RootSnapshot(t) != before {
		t.Error("the root namespace is not as it was")
	}
	if len(file.Rows) != len(o.Suites[0].Rows()) {
		t.Errorf("%d rows, want %d", len(file.Rows), len(o.Suites[0].Rows()))
	}
	measured := map[string]bool{}
	byLink := map[string][]result.Row{}
	for _, row := range file.Rows {
		measured[label(row)] = row.Status == result.StatusOK
		byLink[row.Link] = append(byLink[row.Link], row)
	}
	for link, rows := range byLink {
		t.Run(link, func(t *testing.T) { checkRows(t, link, rows, o.Rounds) })
	}
	want := 0
	for _, p := range o.Suites[0].pairs {
		for _, workload := range o.Suites[0].workloads {
			if measured[p.numerator+" "+workload.String()] && measured[p.denominator+" "+workload.String()] {
				want++
			}
		}
	}
	if len(file.Run.Comparisons) != want {
		t.Errorf("%d comparisons, want %d", len(file.Run.Comparisons), want)
	}
	stored, err := result.Read(filepath.Join(o.Out, ResultsName))
	if err != nil || len(stored.Rows) != len(file.Rows) {
		t.Errorf("the file has %d rows, %v", len(stored.Rows), err)
	}
	if infos, err := o.Store.List(); err != nil || len(infos) > 0 {
		t.Errorf("labs left: %v, %v", infos, err)
	}
}

// checkRows checks the rows of a link mode: all are measured, or all skipped with
// the reason that the kernel lacks it.
func checkRows(t *testing.T, link string, rows []result.Row, rounds int) {
	if mode, err := podlink.Lookup(link); err == nil {
		lacking := mode.Probe()
		for _, row := range rows {
			if lacking != nil && (row.Status != result.StatusSkipped || row.Reason != lacking.Error()) {
				t.Errorf("%s: %s %q, want skipped: %v", label(row), row.Status, row.Reason, lacking)
			}
		}
		if lacking != nil {
			return
		}
	}
	for _, row := range rows {
		if row.Status != result.StatusOK || len(row.Samples) != rounds || row.Median <= 0 {
			t.Errorf("%s: %s %s, %d samples, median %g", label(row), row.Status, row.Reason, len(row.Samples), row.Median)
		}
		if row.Workload == traffic.TCPRR && (row.LatencyUS == nil || row.LatencyUS.P50 <= 0) {
			t.Errorf("%s: no latencies", label(row))
		}
		if len(row.Evidence.Devices) == 0 || row.Evidence.Client.Peer == "" {
			t.Errorf("%s: no evidence", label(row))
		}
	}
}

// TestLie runs paths that claim to be what they are not.
func TestLie(t *testing.T) {
	cluster := find(t, "veth+ebpf/cluster-ip")
	for name, test := range map[string]struct {
		change func(*path)
		reason string
	}{
		"iptables in the place of eBPF": {func(p *path) {
			p.lab = podLinksLab("veth", lab.DatapathKernel, lab.ViaIPTables)
		}, "tracks"},
		"eBPF in the place of nftables":                   {func(p *path) { p.via = result.ViaNFTables }, "no translated entry"},
		"the pod's address in the place of the service's": {func(p *path) { p.connect = p.listen }, "0 entries"},
		"another link": {func(p *path) { p.lab.Link = "macvlan" }, "veth-pod-a"},
	} {
		t.Run(name, func(t *testing.T) {
			lie := cluster
			test.change(&lie)
			o := testOptions(t)
			o.Suites = []Suite{{Name: "lies", workloads: []workload{tcpStreams(1), tcpRR()}, paths: []path{lie}}}
			file, err := Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range file.Rows {
				if row.Status != result.StatusFailed || !strings.Contains(row.Reason, test.reason) || len(row.Samples) > 0 {
					t.Errorf("%s: status %s with %d samples, reason %q; want failed with %q",
						row.Workload, row.Status, len(row.Samples), row.Reason, test.reason)
				}
			}
		})
	}
}

func TestInterrupt(t *testing.T) {
	o := testOptions(t, "loopback", "veth/pod-ip tcp_rr")
	o.Rounds = 1000
	ctx, cancel := context.WithCancel(context.Background())
	samples := 0
	o.Progress = quiet{func() {
		if samples++; samples == 8 {
			cancel()
		}
	}}
	file, err := Run(ctx, o)
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("error %v, want ErrInterrupted", err)
	}
	if !file.Run.Interrupted || len(file.Rows) != 3 {
		t.Errorf("interrupted %t, %d rows", file.Run.Interrupted, len(file.Rows))
	}
	total := 0
	for _, row := range file.Rows {
		total += len(row.Samples)
	}
	if total != 7 {
		t.Errorf("%d samples, want the 7 that were done", total)
	}
	stored, err := result.Read(filepath.Join(o.Out, ResultsName))
	if err != nil || !stored.Run.Interrupted {
		t.Errorf("the file: interrupted %t, %v", stored.Run.Interrupted, err)
	}
}

// TestServerDies kills a server between two samples: its rows fail, the others
// go on.
func TestServerDies(t *testing.T) {
	o := testOptions(t, "loopback tcp_rr", "veth/pod-ip tcp_rr")
	if _, err := o.withDefaults(); err != nil {
		t.Fatal(err)
	}
	s, err := newStand(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	broken := cell{"pod-links", find(t, "veth/pod-ip"), tcpRR()}
	if _, err := s.take(context.Background(), broken, o.spec(broken)); err != nil {
		t.Fatal(err)
	}
	_, server, err := s.ends(context.Background(), broken.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.take(context.Background(), broken, o.spec(broken)); err == nil {
		t.Error("a sample without a server")
	}
	if err := s.drop(broken.path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.take(context.Background(), broken, o.spec(broken)); err != nil {
		t.Errorf("after the ends were started anew: %v", err)
	}
}
