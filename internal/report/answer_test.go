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

// TestSuiteAnswers checks what is said of each suite, and that without enough
// rounds nothing is claimed.
func TestSuiteAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		file        result.File
		want, never []string
	}{
		"interfaces": {file: oneSuite(t, "interfaces"), want: []string{
			"loopback is the fastest, 50.00 Gbit/s; tied with it: host-ip.", "loopback ~ host-ip, host-to-container, veth/pod-ip, bridge/pod-ip ~ container-to-host",
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
			"ADD, one at a time: mustang-veth is the fastest, 4.200 ms; tied with it: mustang-bridge.",
			"No difference to bridge found: macvlan.", "Less time than bridge: mustang-veth 70.0 % (69.8 to 70.3)",
			"99 of 100 calls took less than: bridge 22.4 ms, macvlan 22.4 ms, mustang-veth 6.72 ms",
			"With services per packet too, mustang-veth: 16.7 % more time", "DEL, 100 at once: ", "Calls done in a second: bridge 71.4,",
		}, never: []string{"slower", "Gbit", "faster than", "again"}},
		"few cni": {file: truncated(oneSuite(t, "cni"), 3), want: []string{"Too few rounds to tell from bridge: macvlan, mustang-veth", "has the lowest figure, 4.200 ms; too few rounds to say more"},
			never: []string{"less time", "more time"}},
		"few interfaces": {file: truncated(oneSuite(t, "interfaces"), 3), want: []string{"too few rounds to say more", "too few rounds to tell"},
			never: []string{"slower", "is the fastest", " ~ "}},
		"few latency":   {file: truncated(oneSuite(t, "latency"), 3), want: []string{"too few rounds to tell from host: veth-bridge-nat"}, never: []string{"more time", "12.5"}},
		"few switching": {file: truncated(oneSuite(t, "switching"), 3), want: []string{"too few rounds to tell"}, never: []string{"slower", "better in"}},
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

// TestSchema1 checks that a file of schema 1 gets a report.
func TestSchema1(t *testing.T) {
	f, err := result.Read("../result/testdata/schema1.json")
	if err != nil {
		t.Fatal(err)
	}
	got := renderings(t, f)
	checkSays(t, said(t, f), []string{"veth is the only link with a figure for requests: 23,100/s.", "On veth, kube-proxy with iptables costs Services: requests 4 %."}, nil)
	checkSays(t, got["text"], []string{"veth 23,124", "Slower than host: veth 3.8 %"}, nil)
	checkSays(t, got["page"], []string{"veth is the only link with a figure for requests: 23,100/s.", "0.962"}, nil)
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
	if !strings.HasPrefix(w.Answer.Headline, "20 services: b/20 is the fastest, 9.00") {
		t.Errorf("headline %q", w.Answer.Headline)
	}
	brief := r.Suites[0].Brief.Table.Columns
	if a, b := brief[1].Cells[0], brief[2].Cells[0]; a.Text != "10.0 → 40.0" || b.Text != "9.00 → 9.50" {
		t.Errorf("brief %v, %v", a, b)
	}
	if got := r.Suites[0].Brief.Table.Notes; len(got) < 2 || got[0] != "From 10 services to 30 services." || !strings.HasPrefix(got[1], "1st packet, 10 services against none: A: about 25.0") {
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
		", Pod IP against host: same node: no difference over 4 %; two nodes: no difference over 60 %.",
		", Cluster IP against pod IP: same node: 33 %; two nodes: too few rounds to tell.",
		"ratio, round by round: Pod IP against host; Cluster IP against pod IP.",
	}, []string{"…"})
}
