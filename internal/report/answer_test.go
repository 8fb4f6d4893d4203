// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/report"
	"mustang/internal/result"
)

// podRow makes a row at a pod IP with an interval, of ten equal samples.
func podRow(link string, median, low, high float64) result.Row {
	return result.Row{
		Suite: "pod-links", ID: link + "/pod-ip", Link: link, Datapath: result.DatapathKernel, Placement: result.PlacementSameHost,
		Overlay: result.OverlayNone, Target: result.TargetPodIP, Via: result.ViaNone, Workload: result.WorkloadTCPStream, Engine: "native",
		Unit: "Gbit/s", Samples: slices.Repeat([]float64{median}, 10), Median: median, CI95: &[2]float64{low, high}, Status: result.StatusOK,
	}
}

// cluster makes a row at a cluster IP of the same link.
func cluster(link, via string) result.Row {
	row := podRow(link, 1, 1, 1)
	row.ID, row.Target, row.Via = link+"/cluster-ip/"+via, result.TargetClusterIP, via
	return row
}

// versus makes a comparison of n rounds, of a ratio and its interval.
func versus(numerator, denominator string, n int, figures [3]float64) result.Comparison {
	c := result.Comparison{Name: "x", Suite: "pod-links", Workload: result.WorkloadTCPStream, Numerator: numerator, Denominator: denominator,
		Ratios: slices.Repeat(figures[:1], n), Ratio: figures[0]}
	if n >= 6 {
		c.CI95 = &[2]float64{figures[1], figures[2]}
	}
	return c
}

// podLinks is the description of the suite of podRow.
func podLinks(t *testing.T) result.Suite { return oneSuite(t, "pod-links").Suites[0] }

// TestAnswer checks what is claimed, and above all what is not.
func TestAnswer(t *testing.T) {
	aa := versus("veth/pod-ip/again", "veth/pod-ip", 10, [3]float64{1.001, 0.99, 1.02})
	aa.AA = true
	skipped := podRow("netkit", 0, 0, 0)
	skipped.Status, skipped.Reason, skipped.Samples, skipped.CI95 = result.StatusSkipped, "no", nil, nil
	repeat := skipped
	repeat.Link, repeat.ID, repeat.Repeats = "veth", "veth/pod-ip/again", "veth/pod-ip"
	few := podRow("veth", 30, 0, 0)
	few.CI95, few.Samples = nil, few.Samples[:3]
	for _, tc := range []struct {
		name        string
		rows        []result.Row
		comparisons []result.Comparison
		want        []string
		never       []string
	}{
		{name: "clear", rows: []result.Row{podRow("veth", 30, 29, 31), podRow("macvlan", 40, 39, 41)},
			want: []string{"macvlan is the fastest of 2 ways", "40.00 Gbit/s", "39.00 to 41.00"}, never: []string{"tied", "no difference"}},
		{name: "intervals overlap", rows: []result.Row{podRow("veth", 30, 29, 31), podRow("macvlan", 32, 30.5, 33)},
			want: []string{"no difference was found between macvlan", "and veth"}, never: []string{"is the fastest", "are tied"}},
		{name: "two of three tied", rows: []result.Row{podRow("bridge", 20, 19, 21), podRow("veth", 30, 29, 31), podRow("macvlan", 31, 30, 32)},
			want: []string{"macvlan and veth are tied as the fastest of 3"}, never: []string{"bridge"}},
		{name: "below the spread", rows: []result.Row{podRow("veth", 100, 99.9, 100.1), podRow("macvlan", 101, 100.9, 101.1)}, comparisons: []result.Comparison{aa},
			want: []string{"no difference was found"}, never: []string{"is the fastest"}},
		{name: "paired comparison beats overlap", rows: []result.Row{podRow("veth", 30, 28, 32), podRow("macvlan", 31, 29, 33)},
			comparisons: []result.Comparison{versus("macvlan/pod-ip", "veth/pod-ip", 10, [3]float64{1.03, 1.028, 1.032})},
			want:        []string{"macvlan is the fastest of 2 ways"}},
		{name: "paired the other way round", rows: []result.Row{podRow("veth", 30, 28, 32), podRow("macvlan", 31, 29, 33)},
			comparisons: []result.Comparison{versus("veth/pod-ip", "macvlan/pod-ip", 10, [3]float64{0.97, 0.96, 0.98})},
			want:        []string{"macvlan is the fastest of 2 ways"}},
		{name: "too few rounds", rows: []result.Row{few, podRow("macvlan", 40, 39, 41)},
			want: []string{"macvlan has the highest figure", "too few"}, never: []string{"is the fastest", "tied"}},
		{name: "only one", rows: []result.Row{podRow("veth", 30, 29, 31), skipped},
			want: []string{"veth is the only way"}, never: []string{"fastest", "failed"}},
		{name: "a repeat is no way of its own", rows: []result.Row{podRow("veth", 30, 29, 31), repeat},
			want: []string{"veth is the only way"}, never: []string{"fastest", "not measured", "failed", "again"}},
		{name: "none", rows: []result.Row{skipped}, want: []string{"no way of connecting pods has a figure"}},
		{name: "costs", rows: []result.Row{podRow("veth", 30, 29, 31), cluster("veth", "iptables"), cluster("veth", "nftables"), cluster("veth", "ebpf-tc")},
			comparisons: []result.Comparison{
				aa,
				versus("veth/cluster-ip/iptables", "veth/pod-ip", 10, [3]float64{0.75, 0.74, 0.76}),
				versus("veth/cluster-ip/nftables", "veth/pod-ip", 10, [3]float64{0.985, 0.984, 0.986}), // below the spread of 2 %
				versus("veth/cluster-ip/ebpf-tc", "veth/pod-ip", 10, [3]float64{1.05, 1.04, 1.06}),
			},
			want: []string{"iptables 25.0 % (24.0 to 26.0) with veth", "nftables no difference found (veth)", "eBPF (per packet) 5.0 % (4.0 to 6.0) faster with veth",
				"no difference smaller than 2.0 %"}},
		{name: "cost of too few rounds", rows: []result.Row{podRow("veth", 30, 29, 31), cluster("veth", "iptables")},
			comparisons: []result.Comparison{versus("veth/cluster-ip/iptables", "veth/pod-ip", 5, [3]float64{0.75, 0, 0})},
			want:        []string{"Too few rounds to give the cost"}, never: []string{"25.0 %"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: tc.rows, Run: result.Run{Suite: "pod-links", Comparisons: tc.comparisons}}
			checkSays(t, answers(t, f), tc.want, tc.never)
		})
	}
}

// TestFewestIsBest turns a set of rows into instructions: what was best is worst.
func TestFewestIsBest(t *testing.T) {
	rows := []result.Row{podRow("veth", 30, 29, 31), podRow("macvlan", 40, 39, 41), podRow("bridge", 50, 49, 51)}
	comparisons := []result.Comparison{
		versus("veth/cluster-ip/iptables", "veth/pod-ip", 10, [3]float64{1.25, 1.24, 1.26}),
		versus("macvlan/cluster-ip/iptables", "macvlan/pod-ip", 10, [3]float64{1.1, 1.09, 1.11}),
		versus("veth/cluster-ip/ebpf-socket", "veth/pod-ip", 10, [3]float64{0.9, 0.89, 0.91}),
	}
	rows = append(rows, cluster("veth", "iptables"), cluster("macvlan", "iptables"), cluster("veth", "ebpf-socket"))
	for i := range rows {
		rows[i].Unit = result.UnitPerTransaction
	}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: rows, Run: result.Run{Clock: result.ClockInstructions, Comparisons: comparisons}}
	checkSays(t, answers(t, f), []string{
		"veth takes the fewest instructions of 3 ways", "30.00 instructions/transaction",
		"iptables 10.0 % (9.0 to 11.0) with macvlan to 25.0 % (24.0 to 26.0) with veth", "eBPF (socket) 10.0 % (9.0 to 11.0) fewer with veth",
	}, nil)
	var words []string
	for _, cell := range reportOf(t, f).Suites[0].Workloads[0].Comparisons.Columns[4].Cells {
		words = append(words, cell.Text)
	}
	if !slices.Equal(words, []string{"25.0\u00a0% more", "10.0\u00a0% more", "10.0\u00a0% fewer"}) {
		t.Errorf("findings %q", words)
	}
}

// TestSuiteAnswers checks what is said of each suite, and that without enough
// rounds nothing is claimed.
func TestSuiteAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		file        result.File
		want, never []string
	}{
		"interfaces": {file: oneSuite(t, "interfaces"), want: []string{
			"loopback and host-ip are tied as the fastest of 11 ways", "loopback ~ host-ip, host-to-container, veth/pod-ip, bridge/pod-ip ~ container-to-host",
			"Last: tun/pod-ip with 3.333 Gbit/s; against loopback: 93.3 % slower", "address against 127.0.0.1: no difference found",
			"by 127.0.0.1 against the host's address: 45.7 % slower (45.4 to 46.2)",
		}, never: []string{"(again)", "/again"}},
		"latency": {file: oneSuite(t, "latency"), want: []string{
			"More time per transaction than host: veth-bridge-nat 12.5 % (11.8 to 13.5), veth 9.2 %", "No difference to host found: macvlan",
			"host takes 34.8 µs; added µs: veth+eBPF 1.7 (1.5 to 2.1), veth 3.2", "Figure of host: 28,736 transactions/s, 34.8 µs on average",
		}, never: []string{"slower", "faster", "ipvlan"}},
		"switching": {file: oneSuite(t, "switching"), want: []string{
			"Open vSwitch: 70 to 105 % of a Linux bridge in 9 pairs; better in 1, worse in 7",
			"On one host, Open vSwitch against a bridge: namespaces by veth: no difference found", "virtual machines: 6.4 % slower",
			"VXLAN, against the same without: 18.8 % (bridge/veth) to 29.2 % slower (ovs/vm (tcg))",
			"Two hosts, against the same on one: 23.1 % (bridge/veth)", "Throughput, 3 TCP streams: ", "UDP throughput, 1 UDP stream: ",
		}},
		"docker": {file: oneSuite(t, "docker"), want: []string{
			"slower than host-to-host: published-port/two-hosts 5.3 % (4.8 to 6.2)", "No difference to host-to-host found: host-mode",
			"Faster than host-to-host: published-port/same-host 2.5× (2.5 to 2.6)", "Docker's proxy against rules alone: about 51.2 % slower by the figures",
		}},
		"cni": {file: oneSuite(t, "cni"), want: []string{
			"ADD, one at a time: mustang-veth and mustang-bridge are tied as the fastest of 5 plugins", "which has the lowest figure (4.200 ms",
			"No difference to bridge found: macvlan.", "Less time than bridge: mustang-veth 70.0 % (69.8 to 70.3)",
			"99 of 100 calls took less than: bridge 22.4 ms, macvlan 22.4 ms, mustang-veth 6.72 ms",
			"With services per packet too, mustang-veth: 16.7 % more time", "DEL, 100 at once: ", "Calls done in a second: bridge 71.4,",
		}, never: []string{"slower", "Gbit", "faster than", "again"}},
		"few cni": {file: truncated(oneSuite(t, "cni"), 3), want: []string{"Too few rounds to tell from bridge: macvlan, mustang-veth", "too few to say which plugin is the best"},
			never: []string{"less time", "more time"}},
		"few interfaces": {file: truncated(oneSuite(t, "interfaces"), 3), want: []string{"too few to say which way is the best", "too few rounds to tell"},
			never: []string{"slower", "is the fastest", " ~ "}},
		"few latency":   {file: truncated(oneSuite(t, "latency"), 3), want: []string{"too few rounds to tell from host: veth-bridge-nat"}, never: []string{"more time", "12.5"}},
		"few switching": {file: truncated(oneSuite(t, "switching"), 3), want: []string{"too few rounds to tell", "this run cannot tell a difference"}, never: []string{"slower", "better in"}},
		"few docker":    {file: truncated(oneSuite(t, "docker"), 3), want: []string{"too few rounds to tell"}, never: []string{"slower", "Faster"}},
	} {
		t.Run(name, func(t *testing.T) {
			checkSays(t, answers(t, tc.file), tc.want, tc.never)
		})
	}
}

// TestNoReference checks what is said where the way that others are held against
// has no figure.
func TestNoReference(t *testing.T) {
	for _, name := range []string{"latency", "docker"} {
		f := oneSuite(t, name)
		first := f.Rows[0].ID
		for i := range f.Rows {
			if row := &f.Rows[i]; row.ID == first {
				row.Status, row.Reason, row.Samples, row.CI95, row.Median, row.LatencyUS = result.StatusFailed, "no", nil, nil, 0, nil
			}
		}
		f.Run.Comparisons = nil
		checkSays(t, answers(t, f), []string{first + " has no figure"}, nil)
		renderings(t, f)
	}
}

// TestNotesAreSaid checks that the suite's notes and its subject reach the reader.
func TestNotesAreSaid(t *testing.T) {
	f := oneSuite(t, "switching")
	f.Suites[0].Subject, f.Suites[0].Notes = "Open vSwitch (in user space)", []string{"Open vSwitch forwarded in user space."}
	for _, got := range renderings(t, f) {
		checkSays(t, got, []string{"Open vSwitch (in user space): 70 to 105 % of a Linux bridge in 9 pairs; better in 1", "Open vSwitch forwarded in user space.", "same-host/bridge/vm (tcg)"}, nil)
	}
}

// TestFarIntervals checks that one wild interval does not flatten a chart, and that
// the reader is told.
func TestFarIntervals(t *testing.T) {
	f := oneSuite(t, "latency")
	const words = "reach far beyond the ratios are cut off"
	checkSays(t, wordsOf(pageOf(t, f)), nil, []string{words})
	for i := range f.Run.Comparisons {
		if c := &f.Run.Comparisons[i]; c.Numerator == "veth" {
			c.Ratios[0], c.CI95 = 0.0001, &[2]float64{0.0001, c.CI95[1]}
		}
	}
	checkSays(t, wordsOf(pageOf(t, f)), []string{words}, nil)
}

// TestComparisonsOfSuites checks that a comparison stays with its suite and its number
// of flows, though others have rows of the same names.
func TestComparisonsOfSuites(t *testing.T) {
	f := sample(t, "suites")
	total := 0
	for i, su := range reportOf(t, f).Suites {
		one := reportOf(t, oneSuite(t, f.Suites[i].Name)).Suites[0]
		for j, w := range su.Workloads {
			if diff := cmp.Diff(one.Workloads[j].Comparisons, w.Comparisons); diff != "" {
				t.Errorf("%s, %s: alone and among all suites (-alone +all):\n%s", su.Name, w.Name, diff)
			}
			if w.Comparisons != nil {
				total += len(w.Comparisons.Lines)
			}
		}
	}
	if total != len(f.Run.Comparisons) {
		t.Errorf("%d comparisons shown of %d", total, len(f.Run.Comparisons))
	}
}

// TestPath checks that the path names only devices that carried the traffic.
func TestPath(t *testing.T) {
	for _, got := range renderings(t, oneSuite(t, "latency")) {
		checkSays(t, got, []string{"host-b (uplink, mst-b)", "mustang-nat postrouting"}, []string{"lo)", "(lo"})
	}
}

// TestMatrixOrder checks that kinds of cluster IP have one order, whichever a file
// names first.
func TestMatrixOrder(t *testing.T) {
	for _, f := range []result.File{oneSuite(t, "pod-links"), sample(t, "counted")} {
		slices.Reverse(f.Rows)
		for _, w := range reportOf(t, f).Suites[0].Workloads {
			var heads []string
			for _, c := range w.Matrix.Columns[2:] {
				heads = append(heads, c.Head[1])
			}
			if got := strings.Join(heads, ", "); got != "iptables, nftables, eBPF (per packet), eBPF (socket)" {
				t.Errorf("kinds of cluster IP: %s", got)
			}
		}
	}
}

// TestSchema1 checks that a file of schema 1 gets a report.
func TestSchema1(t *testing.T) {
	f, err := result.Read("../result/testdata/schema1.json")
	if err != nil {
		t.Fatal(err)
	}
	got := renderings(t, f)
	checkSays(t, got["text"], []string{"veth is the only row with a figure", "iptables 3.8 % (3.6 to 4.3) with veth", "veth 23,124", "Slower than host: veth 3.8 %"}, nil)
	checkSays(t, got["page"], []string{"Only veth has a figure, 23,124 transactions/s.", "0.962"}, nil)
}

// TestChartLabels names rows in a group by the other part of their ID.
func TestChartLabels(t *testing.T) {
	f := result.File{Schema: result.Schema, Run: result.Run{Suite: "s"}, Suites: []result.Suite{{
		Name: "s", Question: "q", Layout: result.LayoutList, Answer: []string{result.AnswerStatements},
		Groups: []result.Group{{Caption: "same node", Rows: []string{"host/same-node"}}, {Caption: "Docker", Rows: []string{"docker/bridge"}}},
	}}}
	for _, id := range []string{"host/same-node", "docker/bridge"} {
		f.Rows = append(f.Rows, result.Row{Suite: "s", ID: id, Link: "veth", Datapath: "kernel", Placement: "same-host", Overlay: "none", Target: "pod-ip", Via: "none",
			Workload: result.WorkloadTCPRR, Engine: "native", Unit: result.UnitTransactions, Status: result.StatusOK, Median: 9, Samples: []float64{9}})
	}
	got := map[string]bool{}
	for _, group := range reportOf(t, f).Suites[0].Charts {
		for _, m := range group.Figures[0][0].Marks {
			got[m.Group+": "+m.Label] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"same node: host": true, "Docker: bridge": true}, got); diff != "" {
		t.Error(diff)
	}
}

// TestGrid has the sizes as lines and the implementations as columns, with the ratios between sizes, and names the best among the
// most that all have been measured with.
func TestGrid(t *testing.T) {
	f := result.File{Schema: result.Schema, Run: result.Run{Suite: "s"}}
	suite := result.Suite{
		Name: "s", Question: "q", Layout: result.LayoutList, Answer: []string{result.AnswerGrid},
		Groups: []result.Group{{Caption: "10 services", Rows: []string{"a/10", "b/10"}}, {Caption: "20 services", Rows: []string{"a/20", "b/20"}},
			{Caption: "30 services", Rows: []string{"a/30", "b/30"}}},
		Statements: []result.Statement{
			{Caption: "20 services against 10", Pairs: []result.Pair{{Numerator: "a/20", Denominator: "a/10", Label: "A"}}},
			{Caption: "10 services against none", Pairs: []result.Pair{{Numerator: "a/10", Denominator: "none", Label: "A"}, {Numerator: "b/10", Denominator: "none", Label: "B"}}},
		},
		Series: []result.Series{{Name: "A", Color: result.ColorBlue, Rows: []string{"a/10", "a/20", "a/30"}}, {Name: "B", Color: result.ColorTeal, Rows: []string{"b/10", "b/20", "b/30"}}},
	}
	f.Suites = []result.Suite{suite}
	for _, row := range []struct {
		id     string
		figure float64
	}{{"none", 8}, {"a/10", 10}, {"b/10", 9}, {"a/20", 40}, {"b/20", 9}, {"b/30", 9.5}} {
		measured := result.Row{Suite: "s", ID: row.id, Link: "veth", Datapath: "kernel", Placement: "same-host", Overlay: "none", Target: "cluster-ip", Via: "iptables",
			Family: "ipv4", Workload: result.WorkloadFirstPacket, Engine: "native", Unit: result.UnitMicroseconds, Status: result.StatusOK, Median: row.figure,
			CI95: &[2]float64{row.figure * 0.99, row.figure * 1.01}}
		for range 10 {
			measured.Samples = append(measured.Samples, row.figure)
		}
		f.Rows = append(f.Rows, measured)
	}
	r, err := report.New(f)
	if err != nil {
		t.Fatal(err)
	}
	w := r.Suites[0].Workloads[0]
	var got []string
	for i := range w.Grid.Lines {
		line := ""
		for _, c := range w.Grid.Columns {
			line += c.Cells[i].Text + c.Cells[i].Mark + "|"
		}
		got = append(got, line)
	}
	want := []string{"10 services|10.0|9.00|B|", "20 services|40.0|9.00|B|", "30 services|–|9.50|B|", "20 services / 10 services|4.00|1.00~||", "30 services / 10 services|–|1.06||"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(w.Answer.Headline, "20 services: b/20, 9.00") {
		t.Errorf("headline %q", w.Answer.Headline)
	}
	brief := r.Suites[0].Brief.Tables[0].Columns
	if a, b := brief[1].Cells[0], brief[2].Cells[0]; a.Text != "10.0 → 40.0" || b.Text != "9.00 → 9.50" {
		t.Errorf("brief %v, %v", a, b)
	}
	if got := r.Suites[0].Brief.Tables[0].Notes; len(got) < 2 || got[0] != "From 10 services to 30 services." || !strings.HasPrefix(got[1], "1st packet, 10 services against none: A: about 25.0") {
		t.Errorf("%q", got)
	}
}

// TestFewStatedPairs says of each pair of rows what was found, whole, and what the ratios are of.
func TestFewStatedPairs(t *testing.T) {
	f := result.File{Schema: result.Schema, Run: result.Run{Suite: "pod-links"}, Suites: []result.Suite{{
		Name: "pod-links", Question: "q", Layout: result.LayoutList, Answer: []string{result.AnswerStatements},
		Statements: []result.Statement{
			{Caption: "Pod IP against host", Subject: "by pod IP", Object: "between hosts", Pairs: []result.Pair{
				{Numerator: "a/pod-ip", Denominator: "a-host/pod-ip", Label: "same node"}, {Numerator: "b/pod-ip", Denominator: "b-host/pod-ip", Label: "two nodes"}}},
			{Caption: "Cluster IP against pod IP", Subject: "by cluster IP", Object: "by pod IP", Pairs: []result.Pair{
				{Numerator: "a-svc/pod-ip", Denominator: "a/pod-ip", Label: "same node"}, {Numerator: "b-svc/pod-ip", Denominator: "b/pod-ip", Label: "two nodes"}}},
		},
	}}}
	for _, link := range []string{"a-host", "b-host", "a", "b", "a-svc", "b-svc"} {
		f.Rows = append(f.Rows, podRow(link, 10, 9, 11))
	}
	f.Run.Comparisons = []result.Comparison{
		versus("a/pod-ip", "a-host/pod-ip", 10, [3]float64{0.98, 0.96, 1.01}), versus("b/pod-ip", "b-host/pod-ip", 10, [3]float64{0.7, 0.4, 1.2}),
		versus("a-svc/pod-ip", "a/pod-ip", 10, [3]float64{0.33, 0.32, 0.34}), versus("b-svc/pod-ip", "b/pod-ip", 5, [3]float64{0.5, 0, 0}),
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 60)), " "), []string{
		", Pod IP against host: same node: no difference found; two nodes: too noisy to tell.",
		", Cluster IP against pod IP: same node: 33 %; two nodes: too few rounds to tell.",
		"ratio, round by round: Pod IP against host; Cluster IP against pod IP.",
	}, []string{"…"})
}
