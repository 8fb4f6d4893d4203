// SPDX-License-Identifier: Apache-2.0

package result

import (
	"math"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func TestValidate(t *testing.T) {
	err := sample().Validate()
	testkit.Require(t, err == nil, "good file: %v", err)
	for _, tt := range []struct {
		want  string
		spoil func(*File)
	}{
		{"unknown schema 3", func(f *File) { f.Schema = 3 }},
		{`suite "pod-links": appears twice`, func(f *File) { f.Suites = append(f.Suites, f.Suites[0]) }},
		{"question must not be empty", func(f *File) { f.Suites[0].Question = "" }},
		{`layout "cloud"`, func(f *File) { f.Suites[0].Layout = "cloud" }},
		{"answer must not be empty", func(f *File) { f.Suites[0].Answer = nil }},
		{`color "pink"`, func(f *File) { f.Suites[0].Series[0].Color = "pink" }},
		{`row 0 (bridge-call-on/cluster-ip/iptables tcp_rr): suite "new" is not in the file`,
			func(f *File) { f.Rows[0].Suite = "new" }},
		{`suite "" is not in the file`, func(f *File) { f.Run.Comparisons[0].Suite = "" }},
		{"above 2^53-1", func(f *File) { f.Run.Seed++ }},
		{"rounds -1 is below 0", func(f *File) { f.Run.Rounds = -1 }},
		{"row 1 (bridge-call-on/cluster-ip/iptables tcp_rr): appears twice", func(f *File) { f.Rows[1] = f.Rows[0] }},
		{`datapath "xdp"`, func(f *File) { f.Rows[0].Datapath = "xdp" }},
		{`placement ""`, func(f *File) { f.Rows[0].Placement = "" }},
		{`overlay "gre"`, func(f *File) { f.Rows[0].Overlay = "gre" }},
		{`target "moon"`, func(f *File) { f.Rows[0].Target = "moon" }},
		{`via "magic"`, func(f *File) { f.Rows[0].Via = "magic" }},
		{`workload "sctp"`, func(f *File) { f.Rows[0].Workload = "sctp" }},
		{`status "maybe"`, func(f *File) { f.Rows[0].Status = "maybe" }},
		{`family "ipx"`, func(f *File) { f.Rows[0].Family = "ipx" }},
		{"must be named", func(f *File) { f.Rows[0].Link = "" }},
		{"ok without a sample", func(f *File) { f.Rows[0].Samples = nil }},
		{"ok without unit", func(f *File) { f.Rows[0].Unit = "" }},
		{"skipped without a reason", func(f *File) { f.Rows[1].Reason = "" }},
		{"samples holds +Inf", func(f *File) { f.Rows[0].Samples[3] = math.Inf(1) }},
		{"ci95 holds NaN", func(f *File) { f.Rows[0].CI95[1] = math.NaN() }},
		{"ci95 from 5 samples", func(f *File) { f.Rows[0].Samples = f.Rows[0].Samples[:5] }},
		{"outside its ci95", func(f *File) { f.Rows[0].Median = 16 }},
		{"does not rise", func(f *File) { f.Rows[0].LatencyUS.P90 = 9 }},
		{"cpu_us_per_unit holds NaN", func(f *File) { f.Rows[0].CPUUSPerUnit = math.NaN() }},
		{"softirqs_per_unit holds NaN", func(f *File) { f.Rows[0].Evidence.SoftirqsPerUnit = math.NaN() }},
		{"lost_share holds NaN", func(f *File) { f.Rows[0].LostShare = math.NaN() }},
		{"lost_share -0.5 is below 0", func(f *File) { f.Rows[0].LostShare = -0.5 }},
		{`clock "sundial"`, func(f *File) { f.Run.Clock = "sundial" }},
		{`unit "instructions/packet" in a file of timed rows`, func(f *File) { f.Rows[0].Unit = UnitPerPacket }},
		{`unit "transactions/s" in a file of counted instructions`, func(f *File) { f.Run.Clock = ClockInstructions }},
		{"a time in a file of counted instructions", func(f *File) {
			f.Run.Clock, f.Rows[0].Unit = ClockInstructions, UnitPerTransaction
			f.Rows[0].LatencyUS = nil
		}},
		{"a time in a file of counted instructions", func(f *File) {
			f.Run.Clock, f.Rows[0].Unit = ClockInstructions, UnitPerTransaction
			f.Rows[0].CPUUSPerUnit = 0
		}},
	} {
		refused(t, tt.want, tt.spoil)
	}
}

func refused(t *testing.T, want string, spoil func(*File)) {
	t.Helper()
	f := sample()
	spoil(&f)
	if err := f.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("want one line with %q, got %v", want, err)
	}
}

// TestValidateFigures has files with figures, lengths and names that are out of bounds.
func TestValidateFigures(t *testing.T) {
	for _, tt := range []struct {
		want  string
		spoil func(*File)
	}{
		{`comparison "cluster-ip / pod-ip, veth" (tcp_rr): numerator`, func(f *File) { f.Run.Comparisons[0].Numerator = "" }},
		{"outside its ci95 [0.9, 1]", func(f *File) { f.Run.Comparisons[0].Ratio = 1.5 }},
		{"ci95 of a ratio has an end that is not above 0", func(f *File) { f.Run.Comparisons[0].CI95[0] = 0 }},
		{"samples holds 1e+16", func(f *File) { f.Rows[0].Samples[0] = 1e16 }},
		{"ci95 holds -1e+308", func(f *File) { f.Rows[0].CI95[0] = -1e308 }},
		{"duration_seconds holds +Inf", func(f *File) { f.Run.DurationSeconds = math.Inf(1) }},
		{"5001 rows", func(f *File) { f.Rows = append(f.Rows, make([]Row, maxLengths["rows"]-1)...) }},
		{"501 bytes in a name of id", func(f *File) { f.Rows[0].ID = strings.Repeat("a", maxName+1) }},
		{"501 bytes in a name of pinning",
			func(f *File) { f.Run.Pinning = map[string]int{strings.Repeat("a", maxName+1): 1} }},
		{"65537 bytes in a text of note", func(f *File) { f.Rows[0].Note = strings.Repeat("a", maxText+1) }},
		{"1001 notes", func(f *File) { f.Run.Notes = make([]string, maxList+1) }},
		{"1001 devices", func(f *File) { f.Rows[0].Evidence.Devices = make([]DeviceCount, maxList+1) }},
		{"101 series", func(f *File) { f.Suites[0].Series = make([]Series, 101) }},
		{"10001 pairs", func(f *File) { f.Suites[0].Statements[0].Pairs = make([]Pair, 10_001) }},
		{"samples -1 is below 0", func(f *File) { f.Rows[0].Samples[0] = -1 }},
		{"median -5 is below 0", func(f *File) { f.Rows[0].Median, f.Rows[0].CI95 = -5, nil }},
		{"system_us holds NaN", func(f *File) { f.Rows[0].CPUSplit.SystemUS = math.NaN() }},
		{"ns_per_run holds +Inf", func(f *File) { f.Rows[0].BPFNanos[0].NanosPerRun = math.Inf(1) }},
		{"rate -1 is below 0", func(f *File) { f.Rows[0].Setup.Rate = -1 }},
		{`trace of pod-links veth/pod-ip: direction "back"`, func(f *File) { trace(f).Steps[0].Direction = "back" }},
		{"low -1 is below 0", func(f *File) { trace(f).Steps[0].Low = -1 }},
		{"time holds NaN", func(f *File) { trace(f).Steps[0].Time = math.NaN() }},
		{"3 of 2 transactions are alike", func(f *File) { trace(f).Alike = 3 }},
		{"201 steps", func(f *File) { trace(f).Steps = slices.Repeat(trace(f).Steps[:1], 201) }},
		{"301 traces", func(f *File) { f.Run.Traces = slices.Repeat([]Trace{*trace(f)}, 301) }},
		{"7 rounds with 6 ratios", func(f *File) { c := &f.Run.Comparisons[0]; c.Ratios, c.Rounds = make([]float64, 6), 7 }},
		{"ci95 from 5 samples", func(f *File) { c := &f.Run.Comparisons[0]; c.Ratios, c.Rounds = nil, 5 }},
		{"51 workloads", func(f *File) {
			for n := range maxWorkloads {
				row := f.Rows[0]
				row.Flows = n + 2
				f.Rows = append(f.Rows, row)
			}
		}},
	} {
		refused(t, tt.want, tt.spoil)
	}
}

// TestValidateCounted checks that a file of counted instructions is good, and
// that files from before there was a clock still are.
func TestValidateCounted(t *testing.T) {
	f := sample()
	f.Run.Clock = ""
	err := f.Validate()
	testkit.Check(t, err == nil && !f.Run.Counted(), "no clock: %v, counted %t", err, f.Run.Counted())
	f.Run.Clock, f.Rows[0].Unit, f.Rows[0].LatencyUS, f.Rows[0].CPUUSPerUnit = ClockInstructions,
		UnitPerTransaction, nil, 0
	f.Rows[0].CPUSplit, f.Rows[0].BPFNanos = nil, nil
	err = f.Validate()
	testkit.Check(t, err == nil && f.Run.Counted(), "instructions: %v, counted %t", err, f.Run.Counted())
}

func trace(f *File) *Trace {
	if len(f.Run.Traces) == 0 {
		f.Run.Traces = []Trace{{Suite: "pod-links", ID: "veth/pod-ip", Transactions: 2, Alike: 2,
			Steps: []Step{{Direction: Request}}}}
	}
	return &f.Run.Traces[0]
}
