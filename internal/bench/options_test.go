// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// madeUpSuite has rows of several links and one without.
func madeUpSuite() suites.Suite {
	s := suites.Suite{Name: "made-up", Workloads: []suites.Workload{{Name: load.TCPStream, Flows: 1},
		{Name: load.TCPRR, Flows: 1}}}
	for _, id := range []string{
		"loopback", "veth/pod-ip", "veth/pod-ip/again", "veth/cluster-ip/iptables", "veth/cluster-ip/nftables",
		"veth+ebpf/pod-ip", "veth+ebpf/cluster-ip", "tun/pod-ip", "tun/cluster-ip/nftables",
	} {
		repeats, again := strings.CutSuffix(id, "/again")
		if !again {
			repeats = ""
		}
		s.Paths = append(s.Paths, suites.Path{ID: id, Repeats: repeats})
	}
	s.Paths = append(s.Paths, suites.Path{ID: "veth/pod-ip/nftables", Extra: true})
	return s
}

func TestOnlySelectsRows(t *testing.T) {
	for _, test := range []struct {
		only  []string
		rows  int
		wrong string
	}{
		{nil, 18, ""}, // without the one that only All has
		{[]string{"veth"}, 10, ""},
		{[]string{"veth/pod-ip tcp_rr"}, 1, ""},
		{[]string{"veth/pod-ip"}, 4, ""}, // with its repetition, without veth/pod-ip/nftables
		{[]string{"veth/pod-ip/nftables"}, 2, ""},
		{[]string{"veth/p*"}, 2, ""},
		{[]string{"*/cluster-ip/nftables"}, 4, ""},
		{[]string{"veth", "veth/pod-ip", "loopback"}, 12, ""},
		{[]string{"veth+ebpf/*"}, 4, ""},
		{[]string{"vet"}, 0, "vet"},
		{[]string{"veth", "nope"}, 0, "nope"},
		{[]string{"["}, 0, "["},
	} {
		specs, err := Options{Suites: []suites.Suite{madeUpSuite()}, Only: test.only}.selected()
		if test.wrong != "" {
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.wrong),
				"%q: error %v, want one that names %q", test.only, err, test.wrong)
			continue
		}
		testkit.Check(t, err == nil && len(specs) == test.rows,
			"%q: %d rows, %v; want %d", test.only, len(specs), err, test.rows)
	}
}

// TestBounds refuses what would never end, or end in a file that cannot be written.
func TestBounds(t *testing.T) {
	for text, o := range map[string]Options{
		"":                        {Rounds: result.MaxSamples, Duration: time.Hour, Peer: &PeerOptions{}},
		"it is for --peer":        {Duration: time.Second},
		"--slice -1ns: want":      {Slice: -1},
		"--slice 1.000000001s":    {Slice: maxSlice + 1},
		"--time -1ns: want":       {Time: -1},
		"--time 24h0m1s: want":    {Time: maxTime + time.Second},
		"--until 100%: want":      {Until: 1},
		"--rounds and --until":    {Until: 0.01, Rounds: 1},
		"--rounds -1: want":       {Rounds: -1},
		"--rounds 100001: want":   {Rounds: result.MaxSamples + 1},
		"--duration 1ns: want":    {Duration: 1},
		"--duration 1h0m1s: want": {Duration: time.Hour + time.Second},
		"--duration -1s: want":    {Duration: -time.Second},
		"--duration 2562047h0m0s": {Duration: 2562047 * time.Hour},
	} {
		o.Suites = []suites.Suite{madeUpSuite()}
		if err := o.Validate(); err == nil != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
}

// TestSuiteEndsWhenFileIsFull checks that each suite has its share of the file, and that a run
// notes where one ended for lack of room.
func TestSuiteEndsWhenFileIsFull(t *testing.T) {
	out := testkit.Must(result.CreateDir(t.TempDir(), "", time.Now(), nil))(t)
	defer out.Close()
	o := Options{Out: out}
	for i := range 10 {
		s := madeUpSuite()
		s.Name = fmt.Sprintf("suite-%d", i)
		o.Suites = append(o.Suites, s)
	}
	r := &run{options: o}
	w := suites.Workload{Name: load.TCPRR, Flows: 1}
	about := result.Suite{Name: "suite-0", Question: "?", Layout: result.LayoutList,
		Answer: []string{result.AnswerFastest}}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{about}}
	var rows []*measuredRow
	for i := range 4 {
		p := o.Suites[0].Paths[0]
		p.ID = fmt.Sprint(i)
		row := newRow(rowSpec{o.Suites[0], p, w})
		row.row.Samples = slices.Repeat([]float64{1}, result.MaxSamples)
		row.row.Suite, row.row.Link, row.row.Target, row.row.Via = "suite-0", "veth", result.TargetPodIP, result.ViaNone
		row.row.Status, row.row.Unit, row.row.Engine = result.StatusOK, result.UnitTransactions, "native"
		rows, f.Rows = append(rows, row), append(f.Rows, row.row)
	}
	testkit.Check(t, !r.full(rows), "a file that was not written is full")
	testkit.Succeed(t, out.Write(f))
	later := []*measuredRow{newRow(rowSpec{o.Suites[1], o.Suites[1].Paths[0], w})}
	if !r.full(rows) || r.full(later) || len(r.head.Notes) != 1 {
		t.Errorf("filled %.3f: full %v, for the next suite %v, notes %q", out.Filled(), r.full(rows), r.full(later),
			r.head.Notes)
	}
}

func TestQuickRunIsShort(t *testing.T) {
	o, err := Options{Suites: lookup(t, suites.Default), Quick: true}.withDefaults()
	testkit.Succeed(t, err)
	testkit.Check(t, o.Time <= 45*time.Second, "a quick run is planned to take %v, want at most 45s", o.Time)
	o.Suites = lookup(t, "cni")
	testkit.Check(t, o.rounds() >= minInterval, "%d rounds give no interval", o.rounds())
}

// TestWireNeedsRowAcrossIt checks invalid wires, and wires that no selected row crosses.
func TestWireNeedsRowAcrossIt(t *testing.T) {
	for culprit, o := range map[string]Options{
		"":                         {Suites: suites.List(), WireRate: 1e10, WireDelay: time.Millisecond},
		"pod-links crosses a wire": {Suites: lookup(t, suites.Default), WireRate: 1e10},
		"docker crosses a wire": {Suites: lookup(t, "docker"), Only: []string{"published-port/localhost"},
			WireDelay: 1e6},
		"wire rate 7":               {Suites: lookup(t, "latency"), WireRate: 7},
		"wire delay -1s":            {Suites: lookup(t, "docker"), WireDelay: -time.Second},
		"wire delay 1ns: want 1µs ": {Suites: lookup(t, "switching"), WireDelay: 1},
	} {
		err := o.Validate()
		if culprit == "" && err == nil {
			continue
		}
		testkit.Check(t, culprit != "" && err != nil && strings.Contains(err.Error(), culprit),
			"error %v, want one that names %q", err, culprit)
	}
}

// TestSliceHoldsRequests has rows of a fixed rate, whose turns must hold some.
func TestSliceHoldsRequests(t *testing.T) {
	for rate, want := range map[int]time.Duration{
		1: maxSlice, 10: 200 * time.Millisecond, 50: 40 * time.Millisecond, 200: slowSlice, 5000: slowSlice,
	} {
		w := suites.Workload{Name: load.TCPRR, Setup: result.Setup{Rate: rate}}
		row := &measuredRow{spec: rowSpec{workload: w}}
		if (Options{}).setTurn(row); row.slice != want {
			t.Errorf("%d per second: turns of %v, want %v", rate, row.slice, want)
		}
		o := Options{Suites: []suites.Suite{madeUpSuite()}, Slice: time.Second/time.Duration(rate) - 1}
		o.Suites[0].Workloads = []suites.Workload{w}
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--slice ") {
			t.Errorf("%d per second: slices of %v: %v", rate, o.Slice, err)
		}
	}
}

// TestNothingToMeasure slows a wire in a way that the kernel may lack. Then no row can be measured: the error names
// the reason once, and no result is written.
func TestNothingToMeasure(t *testing.T) {
	o := testOptions(t, "host tcp_rr", "veth tcp_rr")
	o.Suites, o.WireDelay = lookup(t, "latency"), 50*time.Microsecond
	lacks := rtnl.In(testkit.Namespace(t, "netem")).TryQdisc("netem")
	file, err := Run(context.Background(), o)
	if !errors.Is(lacks, errors.ErrUnsupported) {
		testkit.Check(t, err == nil && len(file.Rows) != 0, "%d rows, %v", len(file.Rows), err)
		return
	}
	if err == nil || !strings.HasPrefix(err.Error(), "no row can be measured: kernel ") ||
		strings.Count(err.Error(), "netem queues") != 1 {
		t.Errorf("error %v", err)
	}
	entries, err := os.ReadDir(o.Out.Path)
	testkit.Check(t, err == nil && len(entries) == 0, "in the run's directory are %v, %v", entries, err)
}
