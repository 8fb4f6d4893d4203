// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.json and docs/results.schema.json")

func sample() File {
	return File{
		Schema: Schema,
		Run: Run{
			Suite:           "pod-links",
			Machine:         Machine{CPUModel: "Example 9000", CPUs: 2, MemoryBytes: 8 << 30, Arch: "x86_64", Virtualisation: "none"},
			Clock:           ClockTime,
			Kernel:          "6.18.0",
			Versions:        map[string]string{"go": "go1.26"},
			Settings:        map[string]string{"clocksource": "tsc"},
			Offloads:        map[string]string{"tso": "on"},
			Pinning:         map[string]int{"client": 1, "server": 0},
			Seed:            maxSeed,
			Rounds:          6,
			DurationSeconds: 1,
			WarmupSeconds:   0.25,
			Started:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Finished:        time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
			Quick:           true,
			Interrupted:     true,
			Notes:           []string{"a note"},
			Comparisons: []Comparison{{
				Name: "cluster-ip / pod-ip, veth", Suite: "pod-links", Workload: WorkloadTCPRR,
				Numerator: "veth/cluster-ip/iptables", Denominator: "veth/pod-ip",
				Ratios: []float64{0.9, 0.9, 0.95, 0.95, 1, 1}, Ratio: 0.95, CI95: &[2]float64{0.9, 1}, AA: true,
			}},
		},
		Suites: []Suite{{
			Name: "pod-links", Question: "Which way is the fastest?", Layout: LayoutMatrix,
			Answer: []string{AnswerFastest, AnswerGrid}, Reference: "loopback",
			TransactionTime: true, PacketPath: true, Variants: true,
			Groups:  []Group{{Caption: "On one host", Rows: []string{"macvlan/pod-ip"}}},
			Series:  []Series{{Name: "Linux bridge", Color: ColorSlate, Rows: []string{"bridge-call-on/cluster-ip/iptables"}}},
			Subject: "macvlan", Object: "a Linux bridge",
			Statements: []Statement{{Caption: "macvlan against a bridge", Tally: true, Pairs: []Pair{{
				Numerator: "macvlan/pod-ip", Denominator: "bridge-call-on/cluster-ip/iptables", Label: "pod IP",
			}}}},
			Notes: []string{"a note"},
		}},
		Rows: []Row{{
			Label: "bridge call-on", Baseline: true, Repeats: "loopback",
			Suite: "pod-links", ID: "bridge-call-on/cluster-ip/iptables", Link: "bridge", Variant: "call-on",
			Datapath: DatapathKernel, Placement: PlacementSameHost, Overlay: OverlayNone, Target: TargetClusterIP,
			Via: ViaIPTables, Family: "ipv4", Workload: WorkloadTCPRR, Engine: "native", Unit: "transactions/s",
			Samples: []float64{10, 11, 12, 13, 14, 15}, Median: 12.5, CI95: &[2]float64{10, 15},
			LatencyUS: &Latency{P50: 1, P90: 2, P99: 3, P999: 4}, CPUUSPerUnit: 5, CPUUnit: "transaction",
			CPUSplit: &CPUSplit{UserUS: 1, SystemUS: 2.5, SoftirqUS: 1.5},
			BPFNanos: []ProgramTime{{Program: "from_pod", RunsPerUnit: 2, NanosPerRun: 49}},
			Evidence: Evidence{
				Devices:         []DeviceCount{{Host: "pod-a", Name: "eth0", RxPackets: 1, TxPackets: 2}},
				SoftirqsPerUnit: 1.5, ProgramRuns: map[string]uint64{"from_pod": 7}, Connections: 1,
				Client:      Addresses{Local: "192.168.10.11:40000", Peer: "10.96.0.100:5201"},
				Server:      Addresses{Local: "192.168.10.10:5201", Peer: "192.168.10.11:40000"},
				Attachments: &Attachments{Added: 20, Removed: 20, Reached: "10.88.0.1 (host)", Kept: []string{"cni0"}},
				Findings:    []string{"a finding"},
			},
			LostShare: 0.125, OutOfOrder: 3, CallsPerSecond: 161,
			Status: StatusOK, Reason: "a reason", Note: "a note",
		}, {
			Suite: "pod-links", ID: "macvlan/pod-ip", Link: "macvlan", Datapath: DatapathKernel,
			Placement: PlacementSameHost, Overlay: OverlayNone, Target: TargetPodIP, Via: ViaNone,
			Workload: WorkloadTCPStream, Status: StatusSkipped, Reason: "no macvlan in this kernel",
			Samples: []float64{},
			Evidence: Evidence{
				Devices: []DeviceCount{}, ProgramRuns: map[string]uint64{},
			},
		}},
	}
}

// TestGolden checks the file's layout: renaming or removing a field breaks other programs.
func TestGolden(t *testing.T) {
	got := testkit.Must(Marshal(sample()))(t)
	golden := filepath.Join("testdata", "golden.json")
	if *update {
		testkit.Succeed(t, os.WriteFile(golden, got, 0o644))
	}
	want := testkit.Must(os.ReadFile(golden))(t)
	diff := cmp.Diff(string(want), string(got))
	testkit.Check(t, diff == "", "layout changed (-want +got):\n%s", diff)
	file := testkit.Must(Read(golden))(t)
	diff = cmp.Diff(sample(), file)
	testkit.Check(t, diff == "", "read back (-want +got):\n%s", diff)
}

// TestAlwaysThere checks that a reader finds lists, maps and the interval even where there is nothing in them.
func TestAlwaysThere(t *testing.T) {
	f := File{Schema: Schema, Suites: []Suite{{Name: "s", Question: "q", Layout: LayoutList,
		Answer: []string{AnswerFastest}}}, Rows: []Row{{
		Suite: "s", ID: "a", Link: "veth", Datapath: DatapathEBPF, Placement: PlacementTwoHosts, Overlay: OverlayVXLAN,
		Target: TargetHostIP, Via: ViaEBPFTC, Workload: WorkloadUDPRR, Status: StatusFailed, Reason: "r",
	}}}
	f.Run.Comparisons = []Comparison{{Suite: "s", Numerator: "a", Denominator: "b"}}
	got := testkit.Must(Marshal(f))(t)
	for _, part := range []string{
		`"samples": []`, `"ci95": null`, `"devices": []`, `"program_runs": {}`, `"versions": {}`, `"settings": {}`,
		`"offloads": {}`, `"pinning": {}`, `"ratios": []`, `"median": 0`, `"cpu_us_per_unit": 0`,
	} {
		testkit.Check(t, bytes.Contains(got, []byte(part)), "%s is missing in:\n%s", part, got)
	}
	testkit.Check(t, !bytes.Contains(got, []byte(`"finished"`)), "a run that goes on is finished")
	empty, err := Marshal(File{Schema: Schema})
	testkit.Check(t, err == nil && bytes.Contains(empty, []byte(`"rows": []`)), "no rows: %v\n%s", err, empty)
	testkit.Check(t, f.Rows[0].Samples == nil && f.Run.Comparisons[0].Ratios == nil, "Marshal changed its argument")
}
