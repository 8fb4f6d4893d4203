// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/result"
	"mustang/internal/traffic"
)

// TestCount counts instructions where the machine's clock does, and expects to be
// refused where it shows time: no figure may be called what it is not.
func TestCount(t *testing.T) {
	o := testOptions(t, "veth/pod-ip", "veth+ebpf")
	o.Rounds, o.Duration, o.Count = 0, 0, result.ClockInstructions
	counting := checkCounting()
	file, err := Run(context.Background(), o)
	if counting != nil {
		if !errors.Is(err, ErrNotCounting) || strings.Contains(err.Error(), "\n") || len(file.Rows) > 0 {
			t.Errorf("error %v, %d rows; want one line that says that nothing is counted here", err, len(file.Rows))
		}
		if _, err := os.Stat(o.Out); err == nil {
			t.Error("an output directory was made")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !file.Run.Counted() || len(file.Rows) == 0 {
		t.Errorf("clock %q, %d rows", file.Run.Clock, len(file.Rows))
	}
	for _, row := range file.Rows {
		if row.Status != result.StatusOK {
			t.Errorf("%s: %s %s", label(row), row.Status, row.Reason)
			continue
		}
		low, high := row.Samples[0], row.Samples[0]
		for _, v := range row.Samples {
			low, high = min(low, v), max(high, v)
		}
		t.Logf("%-40s %8.1f %s, spread %.4f", label(row), row.Median, row.Unit, high/low-1)
		if high/low > 1.01 {
			t.Errorf("%s: samples from %.0f to %.0f, which should repeat to a hundredth", label(row), low, high)
		}
		if row.Median < 2000 || row.Median > 1e6 {
			t.Errorf("%s: %g %s", label(row), row.Median, row.Unit)
		}
	}
	for _, c := range file.Run.Comparisons {
		if c.AA && math.Abs(c.Ratio-1) > 0.005 {
			t.Errorf("%s, %s: ratio %g of the same thing", c.Name, c.Workload, c.Ratio)
		}
	}
}

// TestClockCheck shows clocks to the check: the one that counts, and others.
func TestClockCheck(t *testing.T) {
	// ticking plays a machine on which a stretch takes so long for each of its
	// instructions.
	ticking := func(each float64) error {
		now := time.Unix(0, 0)
		l := loop{"playing", 4, func(turns uint64) { now = now.Add(time.Duration(float64(turns*4) * each)) }}
		return l.check(func() time.Time { return now })
	}
	if err := ticking(1); err != nil {
		t.Errorf("a clock that counts: %v", err)
	}
	for _, each := range []float64{0.25, 0.9, 1.1, 5} {
		if err := ticking(each); !errors.Is(err, ErrNotCounting) {
			t.Errorf("%g ns per instruction: %v", each, err)
		}
	}
}

func TestCountOptions(t *testing.T) {
	o, err := Options{Suites: []Suite{podLinks()}, Count: result.ClockInstructions}.withDefaults()
	if err != nil || o.Rounds < minInterval {
		t.Fatalf("%d rounds, %v", o.Rounds, err)
	}
	for _, wrong := range []Options{{Count: "sheep"}, {Count: result.ClockInstructions, Duration: time.Second}} {
		wrong.Suites = []Suite{podLinks()}
		if wrong.Validate() == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
	for _, workload := range o.workloads(o.Suites[0]) {
		for _, spec := range []traffic.Spec{o.spec(cell{"pod-links", o.Suites[0].paths[0], workload}), o.proof(cell{"pod-links", o.Suites[0].paths[0], workload})} {
			if err := spec.Validate(); err != nil || !spec.Exact || spec.Limit == 0 {
				t.Errorf("%+v: %v", spec, err)
			}
		}
	}
}

// TestFigure checks what a sample's figure is made of.
func TestFigure(t *testing.T) {
	counting, timing := Options{Count: result.ClockInstructions}, Options{}
	packets := traffic.Measurement{Workload: traffic.UDPStream, Count: 2000, Sent: 10, Received: 10, BusyNanos: 50_000,
		Rate: 7, Unit: "Gbit/s", CPUUnit: "MB", Machine: traffic.MachineTime{NetRX: 18, NetTX: 2}}
	f, err := counting.figure(packets)
	if err != nil || f.value != 5000 || f.unit != result.UnitPerPacket || f.cpu != 0 || f.softirqs != 2 || f.timed() {
		t.Errorf("packets: %+v, %v", f, err)
	}
	transactions := traffic.Measurement{Workload: traffic.TCPRR, Count: 4, BusyNanos: 1000}
	if f, err := counting.figure(transactions); err != nil || f.value != 250 || f.unit != result.UnitPerTransaction {
		t.Errorf("transactions: %+v, %v", f, err)
	}
	if f, err := timing.figure(packets); err != nil || f.value != 7 || f.unit != "Gbit/s" || !f.timed() {
		t.Errorf("time: %+v, %v", f, err)
	}
	lossy := packets
	lossy.Received--
	if _, err := counting.figure(lossy); err == nil || !strings.Contains(err.Error(), "1 of 10") {
		t.Errorf("with a lost packet: %v", err)
	}
	packets.BusyNanos = 0
	if _, err := counting.figure(packets); err == nil {
		t.Error("nothing was counted, and there is a figure")
	}
}

// TestGroups checks that labs are measured one after the other where
// instructions are counted, and side by side where time is.
func TestGroups(t *testing.T) {
	for count, want := range map[string]func(groups, labs int) bool{
		"":                       func(groups, _ int) bool { return groups == 1 },
		result.ClockInstructions: func(groups, labs int) bool { return groups == labs && labs > 5 },
	} {
		r := &run{options: Options{Suites: []Suite{podLinks()}, Count: count}}
		cells, err := r.options.selected()
		if err != nil {
			t.Fatal(err)
		}
		labs := map[any]bool{}
		for _, c := range cells {
			r.rows = append(r.rows, newTally(c))
			labs[c.path.lab] = true
		}
		total := 0
		for _, group := range r.groups() {
			total += len(group)
		}
		if groups := len(r.groups()); !want(groups, len(labs)) || total != len(cells) {
			t.Errorf("count %q: %d groups of %d rows for %d labs and %d rows", count, groups, total, len(labs), len(cells))
		}
	}
}
