// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"testing"

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
	c := result.Comparison{Name: "x", Workload: result.WorkloadTCPStream, Numerator: numerator, Denominator: denominator,
		Ratios: slices.Repeat(figures[:1], n), Ratio: figures[0]}
	if n >= minRounds {
		c.CI95 = &[2]float64{figures[1], figures[2]}
	}
	return c
}

// TestAnswer checks what is claimed, and above all what is not.
func TestAnswer(t *testing.T) {
	aa := versus("veth/pod-ip/again", "veth/pod-ip", 10, [3]float64{1.001, 0.99, 1.02})
	aa.AA = true
	skipped := podRow("netkit", 0, 0, 0)
	skipped.Status, skipped.Reason, skipped.Samples, skipped.CI95 = result.StatusSkipped, "no", nil, nil
	repeat := skipped
	repeat.Link, repeat.ID, repeat.Variant = "veth", "veth/pod-ip/again", "again"
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
			want: []string{"macvlan has the highest median", "too few"}, never: []string{"is the fastest", "tied"}},
		{name: "only one", rows: []result.Row{podRow("veth", 30, 29, 31), skipped},
			want: []string{"veth is the only way", "1 other way was skipped or failed"}, never: []string{"fastest"}},
		{name: "a repeat is no way of its own", rows: []result.Row{podRow("veth", 30, 29, 31), repeat},
			want: []string{"veth is the only way"}, never: []string{"fastest", "skipped or failed", "again"}},
		{name: "none", rows: []result.Row{skipped}, want: []string{"no way of connecting pods has a figure"}},
		{name: "costs", rows: []result.Row{podRow("veth", 30, 29, 31), cluster("veth", "iptables"), cluster("veth", "nftables"), cluster("veth", "ebpf-tc")},
			comparisons: []result.Comparison{
				aa,
				versus("veth/cluster-ip/iptables", "veth/pod-ip", 10, [3]float64{0.75, 0.74, 0.76}),
				versus("veth/cluster-ip/nftables", "veth/pod-ip", 10, [3]float64{0.985, 0.984, 0.986}), // below the spread of 2 %
				versus("veth/cluster-ip/ebpf-tc", "veth/pod-ip", 10, [3]float64{1.05, 1.04, 1.06}),
			},
			want: []string{"by iptables 25.0 % (veth)", "by nftables nothing that could be found (veth)", "by eBPF (per packet) less than nothing: 5.0 % faster (veth)",
				"no difference smaller than 2.0 %"}},
		{name: "cost of too few rounds", rows: []result.Row{podRow("veth", 30, 29, 31), cluster("veth", "iptables")},
			comparisons: []result.Comparison{versus("veth/cluster-ip/iptables", "veth/pod-ip", 5, [3]float64{0.75, 0, 0})},
			want:        []string{"can't be told: too few rounds"}, never: []string{"25.0 %"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := result.File{Schema: result.Schema, Rows: tc.rows, Run: result.Run{Suite: "pod-links", Comparisons: tc.comparisons}}
			v := newView(f)
			a := v.suites[0].answers()[0]
			text := strings.ReplaceAll(a.Lead+" "+strings.Join(a.More, " ")+" "+v.sets[0].spreadSentence(), "\u00a0", " ")
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q does not say %q", text, want)
				}
			}
			for _, never := range tc.never {
				if strings.Contains(text, never) {
					t.Errorf("%q says %q", text, never)
				}
			}
		})
	}
}
