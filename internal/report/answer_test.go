// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// podRow makes a row at a pod IP with an interval, of ten equal samples.
func podRow(link string, median, low, high float64) result.Row {
	return result.Row{
		Suite: "pod-links", ID: link + "/pod-ip", Link: link, Datapath: result.DatapathKernel,
		Placement: result.PlacementSameHost,
		Overlay:   result.OverlayNone, Target: result.TargetPodIP, Via: result.ViaNone, Workload: result.WorkloadTCPStream,
		Engine: "native",
		Unit:   "Gbit/s", Samples: slices.Repeat([]float64{median}, 10), Median: median, CI95: &[2]float64{low, high},
		Status: result.StatusOK,
	}
}

func cluster(link, via string) result.Row {
	row := podRow(link, 1, 1, 1)
	row.ID, row.Target, row.Via, row.Proxy = link+"/cluster-ip/"+via, result.TargetClusterIP, via, via
	return row
}

// versus makes a comparison of n rounds, of a ratio and its interval.
func versus(numerator, denominator string, n int, figures [3]float64) result.Comparison {
	c := result.Comparison{Name: "x", Suite: "pod-links", Workload: result.WorkloadTCPStream, Numerator: numerator,
		Denominator: denominator,
		Ratios:      slices.Repeat(figures[:1], n), Ratio: figures[0]}
	if n >= 6 {
		c.CI95 = &[2]float64{figures[1], figures[2]}
	}
	return c
}

func podLinks(t *testing.T) result.Suite { return oneSuite(t, "pod-links").Suites[0] }

// TestNotesAreSaid checks that the suite's notes and its subject reach the reader.
func TestNotesAreSaid(t *testing.T) {
	f := oneSuite(t, "switching")
	f.Suites[0].Subject, f.Suites[0].Notes = "Open vSwitch (in user space)",
		[]string{"Open vSwitch forwarded in user space."}
	for _, got := range renderings(t, f) {
		checkSays(t, got, []string{"same-host/bridge/vm (tcg)", "Open vSwitch forwarded in user space."}, nil)
	}
}

// TestComparisonsOfSuites checks that a comparison stays with its suite and its number
// of flows, though others have rows of the same names.
func TestComparisonsOfSuites(t *testing.T) {
	f := sample(t, "suites")
	total := 0
	for i, su := range reportOf(t, f).Suites {
		one := reportOf(t, oneSuite(t, f.Suites[i].Name)).Suites[0]
		for j, w := range su.Workloads {
			diff := cmp.Diff(one.Workloads[j].Comparisons, w.Comparisons)
			testkit.Check(t, diff == "", "%s, %s: alone and among all suites (-alone +all):\n%s", su.Name, w.Name, diff)
			if w.Comparisons != nil {
				total += len(w.Comparisons.Lines)
			}
		}
	}
	testkit.Check(t, total == len(f.Run.Comparisons), "%d comparisons shown of %d", total, len(f.Run.Comparisons))
}

// TestPath checks that the path names only devices that carried the traffic.
func TestPath(t *testing.T) {
	for _, got := range renderings(t, oneSuite(t, "latency")) {
		checkSays(t, got, []string{"host-b (uplink, mst-b)", "mustang-nat postrouting"}, []string{"lo)", "(lo"})
	}
}

// TestGrid checks a grid with sizes as lines and implementations as columns, with the ratios between sizes. The best
// is named at the largest size that all were measured with.
func TestGrid(t *testing.T) {
	f := result.File{Schema: result.Schema, Run: result.Run{Suite: "s"}}
	suite := result.Suite{
		Name: "s", Question: "q", Layout: result.LayoutList, Answer: []string{result.AnswerGrid},
		Groups: []result.Group{{Caption: "10 services", Rows: []string{"a/10", "b/10"}},
			{Caption: "20 services", Rows: []string{"a/20", "b/20"}},
			{Caption: "30 services", Rows: []string{"a/30", "b/30"}}},
		Statements: []result.Statement{
			{Caption: "20 services against 10", Pairs: []result.Pair{{Numerator: "a/20", Denominator: "a/10", Label: "A"}}},
			{Caption: "10 services against none", Pairs: []result.Pair{{Numerator: "a/10", Denominator: "none", Label: "A"},
				{Numerator: "b/10", Denominator: "none", Label: "B"}}},
		},
		Series: []result.Series{{Name: "A", Color: result.ColorBlue, Rows: []string{"a/10", "a/20", "a/30"}},
			{Name: "B", Color: result.ColorTeal, Rows: []string{"b/10", "b/20", "b/30"}}},
	}
	f.Suites = []result.Suite{suite}
	for _, row := range []struct {
		id     string
		figure float64
	}{{"none", 8}, {"a/10", 10}, {"b/10", 9}, {"a/20", 40}, {"b/20", 9}, {"b/30", 9.5}} {
		measured := result.Row{Suite: "s", ID: row.id, Link: "veth", Datapath: "kernel", Placement: "same-host",
			Overlay: "none", Target: "cluster-ip", Via: "iptables",
			Family: "ipv4", Workload: result.WorkloadFirstPacket, Engine: "native", Unit: result.UnitMicroseconds,
			Status: result.StatusOK, Median: row.figure,
			CI95: &[2]float64{row.figure * 0.99, row.figure * 1.01}}
		for range 10 {
			measured.Samples = append(measured.Samples, row.figure)
		}
		f.Rows = append(f.Rows, measured)
	}
	r, err := report.New(f)
	testkit.Succeed(t, err)
	w := r.Suites[0].Workloads[0]
	var got []string
	for i := range w.Grid.Lines {
		line := ""
		for _, c := range w.Grid.Columns {
			line += c.Cells[i].Text + c.Cells[i].Mark + "|"
		}
		got = append(got, line)
	}
	want := []string{"10 services|10.0|9.00|B|", "20 services|40.0|9.00|B|", "30 services|–|9.50|B|",
		"20 services / 10 services|4.00±.09|1.00±.03~||", "30 services / 10 services|–|1.06±.03||"}
	diff := cmp.Diff(want, got)
	testkit.Check(t, diff == "", "%v", diff)
	if got := r.Suites[0].Brief.Sentences[0]; !strings.HasPrefix(got,
		"20 services: b/20 is the fastest for first packet: 9.00") {
		t.Errorf("verdict %q", got)
	}
	brief := r.Suites[0].Brief.Tables[0].Columns
	if a, b := brief[1].Cells[0], brief[2].Cells[0]; a.Text != "10.0 → 40.0" || b.Text != "9.00 → 9.50" {
		t.Errorf("brief %v, %v", a, b)
	}
	if got := r.Suites[0].Brief.Tables[0].Notes; len(got) < 2 || got[0] != "From 10 services to 30 services." ||
		!strings.HasPrefix(got[1], "First packet, 10 services against none: A +25\u00a0%") {
		t.Errorf("%q", got)
	}
}

// TestVerdicts checks what a file of results answers: the verdict of a workload and the lines of the tables.
func TestVerdicts(t *testing.T) {
	plain, fast, slow := podRow("plain", 40, 39, 41), podRow("fast", 50, 49, 51), podRow("slow", 45, 44, 46)
	ebpf := ofEBPF(plain)
	ebpf.Median, ebpf.CI95 = 48, nil
	big := ebpf
	big.ID, big.BigTCP, big.Variant, big.Median = "plain+ebpf+big-tcp/pod-ip", true, "big-tcp", 70
	loopback := podRow("loopback", 90, 89, 91)
	loopback.ID, loopback.Label, loopback.Link, loopback.Target, loopback.Baseline = "loopback", "loopback",
		result.LinkHost, result.TargetLoopback, true
	rank := func(id string, ratio, low, high float64) result.Comparison {
		return asking(result.AsksRank, id, "fast/pod-ip", [3]float64{ratio, low, high})
	}
	iptables, behind := withProxy(plain, result.ViaIPTables), rank("plain/pod-ip", 0.8, 0.79, 0.81)
	service := iptables
	service.ID, service.Target, service.Via = "plain/cluster-ip/iptables", result.TargetClusterIP, result.ViaIPTables
	for _, tc := range []struct {
		name        string
		rows        []result.Row
		comparisons []result.Comparison
		want, never []string
	}{
		{name: "others are behind", rows: []result.Row{plain, fast, slow}, comparisons: []result.Comparison{behind,
			rank("slow/pod-ip", 0.9784, 0.968, 0.988)},
			want: []string{"fast is the fastest for streams: 50.0 Gbit/s.",
				"fast 50.0 1 slow 48.9 0.978±.011 plain 40.0 0.800±.010"}, never: []string{"~"}},
		{name: "level", rows: []result.Row{plain, fast, slow}, comparisons: []result.Comparison{behind,
			rank("slow/pod-ip", 0.995, 0.9884, 1.002)},
			want: []string{"fast and slow are the fastest for streams: 50.0 Gbit/s, level within 1.2 %.", "0.995±.007~",
				"~ no difference found."}},
		{name: "not told apart", rows: []result.Row{plain, fast, slow}, comparisons: []result.Comparison{behind,
			rank("slow/pod-ip", 0.97, 0.884, 1.05)},
			want:  []string{"fast has the highest figure for streams: 50.0 Gbit/s. Not certain: slow (within 12 %)."},
			never: []string{"fastest"}},
		{name: "a yardstick never wins", rows: []result.Row{loopback, plain, fast},
			comparisons: []result.Comparison{asking(result.AsksRank, "fast/pod-ip", "loopback", [3]float64{0.6, 0.59, 0.61}),
				behind},
			want: []string{"fast is the fastest for streams: 50.0 Gbit/s."}, never: []string{"loopback"}},
		{name: "figures follow ratios", rows: []result.Row{plain, fast, ebpf}, // whose own medians are 40 and 48
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.7, 0.69, 0.71), rank("plain+ebpf/pod-ip", 0.9, 0.89, 0.91)},
			want:        []string{"plain+eBPF 45.0 0.900±.010 plain 35.0 0.700±.010"}, never: []string{"40.0", "48.0"}},
		{name: "BIG TCP is compared with the same link", rows: []result.Row{plain, fast, ebpf, big},
			comparisons: []result.Comparison{behind, rank("plain+ebpf/pod-ip", 0.9, 0.89, 0.91), asking(result.AsksBigTCP,
				big.ID, ebpf.ID, [3]float64{1.2, 1.19, 1.21})},
			want: []string{"With BIG TCP, plain+eBPF is faster: 54.0 Gbit/s (+20 % ±1 by BIG TCP)."}, never: []string{"70.0", "big-tcp"}},
		{name: "costs", rows: []result.Row{plain, fast, iptables, service, ebpf}, comparisons: []result.Comparison{behind,
			asking(result.AsksProxy, iptables.ID, "plain/pod-ip", [3]float64{0.81, 0.8, 0.82}), asking(result.AsksService,
				service.ID, iptables.ID, [3]float64{0.998, 0.991, 1.004}),
			asking(result.AsksTotal, service.ID, "plain/pod-ip", [3]float64{0.786, 0.781, 0.791}), asking(result.AsksProxy,
				ebpf.ID, "plain/pod-ip", [3]float64{1, 0.8, 1.3})},
			want: []string{"plain iptables all traffic −19 % ±1", "plain iptables a Service on top within 0.9 %",
				"plain eBPF per packet all traffic within 30 %*",
				"Streams on plain with iptables: −19 % ±1. To a Service: no further change (within 0.9 %)."}, never: []string{"both costs"}},
		{name: "what was not seen", rows: []result.Row{plain, fast}, comparisons: []result.Comparison{behind, again(0.0071)},
			want: []string{"One path measured twice may differ by 0.8 %. More certain: --time 10m"}},
		{name: "too short", rows: []result.Row{plain, fast}, comparisons: []result.Comparison{versus("plain/pod-ip",
			"fast/pod-ip", 2, [3]float64{0.8})},
			want: []string{"fast has the highest figure for streams: 50.0 Gbit/s. Too few rounds to compare: plain.",
				"The run was too short for 95 % intervals, so no difference is certain.", "--time 10m", "0.80?"},
			never: []string{"fastest", "±"}},
		{name: "one link", rows: []result.Row{plain},
			want: []string{"plain is the only one with a figure for streams: 40.0 Gbit/s."}, never: []string{"fastest"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := linksFile(t, tc.rows, tc.comparisons...)
			checkSays(t, said(t, f), tc.want, tc.never)
			checkSays(t, wordsOf(pageOf(t, f)), tc.want[:1], nil)
		})
	}
}

// TestSuiteAnswers checks the answer of each suite, and that without enough rounds nothing is claimed.
func TestSuiteAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		file        result.File
		want, never []string
	}{
		"interfaces": {oneSuite(t, "interfaces"),
			[]string{"loopback and host-ip are the fastest for streams: 50.0 Gbit/s, level within 1.0 %.",
				"tun/pod-ip 3.33 0.0667±.0006"}, []string{"again"}},
		"latency": {oneSuite(t, "latency"), []string{"macvlan is the fastest for requests: 28,700/s.",
			"veth+eBPF 36.5 1.7 (1.5 to 2.1)", "host 34.8 0"}, []string{"slower"}},
		"switching": {oneSuite(t, "switching"),
			[]string{"Throughput, 1 TCP stream, Open vSwitch against a Linux bridge: ratio 70 to 105 % in 9 pairs; better in " +
				"1, worse in 7, no difference found in 1."}, nil},
		"docker": {oneSuite(t, "docker"),
			[]string{"published-port/same-host and published-port/localhost/no-proxy are the fastest for streams: 47.6 Gbit/s",
				"published-port/two-hosts 17.8 0.947±.009"}, nil},
		"cni": {oneSuite(t, "cni"),
			[]string{"mustang-veth and mustang-bridge are the fastest for ADD, one at a time: 4.20 ms",
				"mustang-veth+eBPF 4.90 0.350±.004"}, []string{"again"}},
		"few cni": {truncated(oneSuite(t, "cni"), 3),
			[]string{"has the lowest figure for ADD, one at a time: 4.20 ms. Too few rounds to compare: mustang-bridge"},
			[]string{"fastest"}},
		"few interfaces": {truncated(oneSuite(t, "interfaces"), 3), []string{"Too few rounds to compare: host-ip"},
			[]string{"fastest", "~"}},
		"few switching": {truncated(oneSuite(t, "switching"), 3), []string{"too few rounds in 9"}, []string{"better in"}},
	} {
		t.Run(name, func(t *testing.T) { checkSays(t, said(t, tc.file), tc.want, tc.never) })
	}
	f := oneSuite(t, "latency") // whose reference lacks a figure
	row := &f.Rows[0]
	row.Status, row.Reason, row.Samples, row.CI95, row.Median, row.LatencyUS, f.Run.Comparisons = result.StatusFailed,
		"no", nil, nil, 0, nil, nil
	checkSays(t, said(t, f), []string{"failed: host: no"}, nil)
	renderings(t, f)
}

// TestFewStatedPairs lists the pairs of rows of an answer one by one.
func TestFewStatedPairs(t *testing.T) {
	f := result.File{Schema: result.Schema, Run: result.Run{Suite: "pod-links"}, Suites: []result.Suite{{
		Name: "pod-links", Question: "q", Layout: result.LayoutList, Answer: []string{result.AnswerStatements},
		Statements: []result.Statement{{Caption: "Pod IP against host", Subject: "by pod IP", Object: "between hosts",
			Pairs: []result.Pair{
				{Numerator: "a/pod-ip", Denominator: "a-host/pod-ip", Label: "same node"},
				{Numerator: "b/pod-ip", Denominator: "b-host/pod-ip", Label: "two nodes"}}}},
	}}}
	for _, link := range []string{"a-host", "b-host", "a", "b"} {
		f.Rows = append(f.Rows, podRow(link, 10, 9, 11))
	}
	f.Run.Comparisons = []result.Comparison{
		versus("a/pod-ip", "a-host/pod-ip", 10, [3]float64{0.98, 0.96, 1.01}), versus("b/pod-ip", "b-host/pod-ip", 10,
			[3]float64{0.33, 0.32, 0.34}),
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 60)), " "), []string{
		"Throughput, Pod IP against host: same node within 4 %; two nodes −67 % ±1.",
		"ratio, round by round: Pod IP against host.", "a/pod-ip 10.0 0.98±.03~",
	}, []string{"…"})
}
