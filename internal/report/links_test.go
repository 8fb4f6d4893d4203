// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/report/render"
	"mustang/internal/result"
)

// asking makes a comparison that answers a question, of rows that took turns.
func asking(asks, numerator, denominator string, figures [3]float64) result.Comparison {
	c := versus(numerator, denominator, 10, figures)
	c.Asks, c.Verdict, c.Over, c.Class = asks, result.VerdictNone, "lab", result.ClassKernel
	switch {
	case figures[2] < 1:
		c.Verdict = result.VerdictLower
	case figures[1] > 1:
		c.Verdict = result.VerdictHigher
	}
	return c
}

// again is the comparison of two measurements of one path.
func again(half float64) result.Comparison {
	c := asking("", "plain/pod-ip/again", "plain/pod-ip", [3]float64{1, 1 - half, 1 + half})
	c.AA = true
	return c
}

// ofEBPF makes a row one of the eBPF datapath.
func ofEBPF(row result.Row) result.Row {
	row.ID = strings.Replace(row.ID, "/", "+ebpf/", 1)
	row.Datapath, row.Proxy = result.DatapathEBPF, result.ViaEBPFTC
	return row
}

// withProxy makes a row one of a network with a service proxy.
func withProxy(row result.Row, proxy string) result.Row {
	row.ID, row.Proxy = row.ID+"/"+proxy, proxy
	return row
}

// under gives comparisons and rows a workload.
func under(workload, unit string, rows []result.Row, comparisons []result.Comparison) ([]result.Row, []result.Comparison) {
	rows, comparisons = slices.Clone(rows), slices.Clone(comparisons)
	for i := range rows {
		rows[i].Workload, rows[i].Unit = workload, unit
	}
	for i := range comparisons {
		comparisons[i].Workload = workload
	}
	return rows, comparisons
}

// linksFile is a file of such rows.
func linksFile(t *testing.T, rows []result.Row, comparisons ...result.Comparison) result.File {
	return result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: rows, Run: result.Run{Suite: "pod-links", Comparisons: comparisons}}
}

// said is the answer on a terminal on one line.
func said(t *testing.T, f result.File) string {
	t.Helper()
	return strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
}

// TestLinkSentences checks the sentences that a file of results gives.
func TestLinkSentences(t *testing.T) {
	plain, fast, slow := podRow("plain", 40, 39, 41), podRow("fast", 50, 49, 51), podRow("slow", 45, 44, 46)
	ebpf := ofEBPF(plain)
	ebpf.Median, ebpf.CI95 = 48, nil
	big := ebpf
	big.ID, big.BigTCP, big.Variant, big.Median = "plain+ebpf+big-tcp/pod-ip", true, "big-tcp", 70
	loopback := podRow("loopback", 90, 89, 91)
	loopback.ID, loopback.Label, loopback.Link, loopback.Target, loopback.Baseline = "loopback", "loopback", result.LinkHost, result.TargetLoopback, true
	rank := func(id string, ratio, low, high float64) result.Comparison {
		return asking(result.AsksRank, id, "fast/pod-ip", [3]float64{ratio, low, high})
	}
	iptables, nftables := withProxy(plain, result.ViaIPTables), withProxy(plain, result.ViaNFTables)
	service := func(row result.Row, via string) result.Row {
		row.ID, row.Target, row.Via = strings.Replace(row.ID, "pod-ip", "cluster-ip", 1), result.TargetClusterIP, via
		return row
	}
	for _, tc := range []struct {
		name        string
		rows        []result.Row
		comparisons []result.Comparison
		want, never []string
	}{
		{name: "others are behind", rows: []result.Row{plain, fast, slow},
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.8, 0.79, 0.81), rank("slow/pod-ip", 0.9784, 0.968, 0.988)},
			want:        []string{"fast is the fastest for streams: 50.0 Gbit/s. slow 2.2 % ±1.1 less, plain 20 % less."}},
		{name: "level", rows: []result.Row{plain, fast, slow},
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.8, 0.79, 0.81), rank("slow/pod-ip", 0.995, 0.9884, 1.002)},
			want:        []string{"fast and slow are the fastest for streams: 50.0 Gbit/s, level within 1.2 %. plain 20 % less."}},
		{name: "not told apart", rows: []result.Row{plain, fast, slow},
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.8, 0.79, 0.81), rank("slow/pod-ip", 0.97, 0.884, 1.05)},
			want:        []string{"fast has the highest figure for streams: 50.0 Gbit/s. Not certain: slow (up to 12 % less). plain 20 % less."}, never: []string{"fastest"}},
		{name: "a yardstick never wins", rows: []result.Row{loopback, plain, fast},
			comparisons: []result.Comparison{asking(result.AsksRank, "fast/pod-ip", "loopback", [3]float64{0.6, 0.59, 0.61}), rank("plain/pod-ip", 0.8, 0.79, 0.81)},
			want:        []string{"fast is the fastest for streams: 50.0 Gbit/s. plain 20 % less."}, never: []string{"loopback"}},
		{name: "figures follow ratios", rows: []result.Row{plain, fast, ebpf}, // whose own medians are 40 and 48
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.7, 0.69, 0.71), rank("plain+ebpf/pod-ip", 0.9, 0.89, 0.91)},
			want:        []string{"plain+eBPF 10 % less, plain plain 30 % less.", " fast 50.0 plain 35.0 "}, never: []string{"40.0", "48.0"}},
		{name: "BIG TCP is compared with the same link", rows: []result.Row{plain, fast, ebpf, big},
			comparisons: []result.Comparison{rank("plain/pod-ip", 0.8, 0.79, 0.81), rank("plain+ebpf/pod-ip", 0.9, 0.89, 0.91),
				asking(result.AsksBigTCP, big.ID, ebpf.ID, [3]float64{1.2, 1.19, 1.21})},
			want: []string{"With BIG TCP, plain+eBPF carries 54.0 Gbit/s, 20 % more."}, never: []string{"70.0", "big-tcp is", "50 % more", "75 % more"}},
		{name: "two costs", rows: []result.Row{plain, fast, iptables, nftables, service(iptables, result.ViaIPTables), service(nftables, result.ViaNFTables), ebpf, service(ebpf, result.ViaEBPFTC)},
			comparisons: []result.Comparison{
				rank("plain/pod-ip", 0.8, 0.79, 0.81), rank("plain+ebpf/pod-ip", 0.9, 0.89, 0.91),
				asking(result.AsksProxy, "plain/pod-ip/iptables", "plain/pod-ip", [3]float64{0.81, 0.8, 0.82}),
				asking(result.AsksService, "plain/cluster-ip/iptables", "plain/pod-ip/iptables", [3]float64{0.97, 0.965, 0.975}),
				asking(result.AsksTotal, "plain/cluster-ip/iptables", "plain/pod-ip", [3]float64{0.786, 0.781, 0.791}),
				asking(result.AsksProxy, "plain/pod-ip/nftables", "plain/pod-ip", [3]float64{0.88, 0.87, 0.89}),
				asking(result.AsksService, "plain/cluster-ip/nftables", "plain/pod-ip/nftables", [3]float64{0.998, 0.991, 1.004}),
				asking(result.AsksTotal, "plain/cluster-ip/nftables", "plain/pod-ip", [3]float64{0.878, 0.87, 0.89}),
				asking(result.AsksProxy, "plain+ebpf/pod-ip", "plain/pod-ip", [3]float64{1.06, 1.05, 1.07}),
				asking(result.AsksService, "plain+ebpf/cluster-ip", "plain+ebpf/pod-ip", [3]float64{0.999, 0.995, 1.003}),
				asking(result.AsksTotal, "plain+ebpf/cluster-ip", "plain/pod-ip", [3]float64{1.059, 1.049, 1.07}),
			},
			want: []string{"On plain, kube-proxy with iptables slows all pod traffic: streams 19 %. Services cost on top: streams 3 %.",
				"On plain, kube-proxy with nftables slows all pod traffic: streams 12 %. Services cost on top nothing (within 0.9 %).",
				"On plain, Mustang's eBPF speeds up all pod traffic: streams 6 %. Services cost on top nothing (within 0.5 %).", "plain 40.0 −21±1 −12±2 +6±2"}},
		{name: "a Service alone costs", rows: []result.Row{fast, plain, withProxy(fast, result.ViaIPTables), service(withProxy(fast, result.ViaIPTables), result.ViaIPTables), iptables, ebpf},
			comparisons: []result.Comparison{
				rank("plain/pod-ip", 0.8, 0.79, 0.81),
				asking(result.AsksProxy, "fast/pod-ip/iptables", "fast/pod-ip", [3]float64{1, 0.995, 1.004}),
				asking(result.AsksService, "fast/cluster-ip/iptables", "fast/pod-ip/iptables", [3]float64{0.66, 0.65, 0.67}),
				asking(result.AsksProxy, "plain/pod-ip/iptables", "plain/pod-ip", [3]float64{0.81, 0.8, 0.82}),
				asking(result.AsksProxy, "plain+ebpf/pod-ip", "plain/pod-ip", [3]float64{1, 0.8, 1.3}),
			},
			want: []string{"On fast, kube-proxy with iptables costs all pod traffic nothing (within 0.5 %). Services cost on top: streams 34 %.",
				"On plain, Mustang's eBPF costs all pod traffic: streams not certain (within 30 %)."}},
		{name: "what was not seen", rows: []result.Row{plain, fast}, comparisons: []result.Comparison{rank("plain/pod-ip", 0.8, 0.79, 0.81), again(0.0071)},
			want: []string{"The same path measured twice agreed within 0.8 %. More certain: --time 10m"}},
		{name: "too short", rows: []result.Row{plain, fast}, comparisons: []result.Comparison{versus("plain/pod-ip", "fast/pod-ip", 2, [3]float64{0.8})},
			want:  []string{"fast has the highest figure for streams: 50.0 Gbit/s; too few networks to compare.", "The run was too short for 95 % intervals, so no difference is certain.", "--time 10m"},
			never: []string{"fastest", "±", "less"}},
		{name: "one link", rows: []result.Row{plain}, want: []string{"plain is the only link with a figure for streams: 40.0 Gbit/s."}, never: []string{"fastest"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := linksFile(t, tc.rows, tc.comparisons...)
			checkSays(t, said(t, f), tc.want, append(tc.never, "~", "too noisy"))
			sentences := slices.DeleteFunc(slices.Clone(tc.want), func(s string) bool { return strings.HasPrefix(s, "plain 40.0 −") || strings.HasPrefix(s, " fast") })
			checkSays(t, wordsOf(pageOf(t, f)), sentences, nil)
		})
	}
}

// TestEachWorkloadByItsNoise makes streams noisy: requests have their answer all the same.
func TestEachWorkloadByItsNoise(t *testing.T) {
	rows := []result.Row{podRow("plain", 40, 39, 41), podRow("fast", 50, 49, 51)}
	quiet := []result.Comparison{again(0.005), asking(result.AsksRank, "plain/pod-ip", "fast/pod-ip", [3]float64{0.8, 0.79, 0.81})}
	noisy := []result.Comparison{again(0.4), asking(result.AsksRank, "plain/pod-ip", "fast/pod-ip", [3]float64{0.8, 0.5, 1.2})}
	f := linksFile(t, rows, noisy...)
	requests, found := under(result.WorkloadTCPRR, result.UnitTransactions, rows, quiet)
	f.Rows, f.Run.Comparisons = append(f.Rows, requests...), append(f.Run.Comparisons, found...)
	f.Run.Notes = []string{"Others kept 1.9 CPUs busy. Repeat the run on a quiet machine."}
	out := said(t, f)
	checkSays(t, out, []string{
		"fast has the highest figure for streams: 50.0 Gbit/s. Not certain: plain (up to 50 % less).", "fast is the fastest for requests: 50.0/s. plain 20 % less.",
		"The same path measured twice agreed within 40 % (streams), 0.5 % (requests).", "Others kept 1.9 CPUs busy. Repeat the run on a quiet machine.",
	}, []string{"names no best", "too noisy"})
	if strings.Index(out, "Others kept") > strings.Index(out, "fast has") || strings.Contains(out, "More certain") {
		t.Errorf("a disturbed run says so first, and asks for no more time: %s", out)
	}
}

// TestFewestInstructions checks that less is better where instructions were counted.
func TestFewestInstructions(t *testing.T) {
	rows, comparisons := under(result.WorkloadTCPRR, result.UnitPerTransaction, []result.Row{podRow("plain", 3000, 2999, 3001), podRow("other", 3300, 3299, 3301), cluster("plain", "iptables")},
		[]result.Comparison{versus("plain/cluster-ip/iptables", "plain/pod-ip", 10, [3]float64{1.25, 1.24, 1.26})})
	f := linksFile(t, rows, comparisons...)
	f.Run.Clock = result.ClockInstructions
	checkSays(t, said(t, f), []string{"plain takes the fewest instructions for requests: 3,000 each. other 10 % more.", "On plain, kube-proxy with iptables costs Services: requests 25 %.", "plain 3,000 +25±1"},
		[]string{"fastest", "More certain", "less"})
}

// TestRecordedLinks checks the answer of a recorded run against its figures: each sentence and each line agrees with the file.
func TestRecordedLinks(t *testing.T) {
	f := sample(t, "recorded-links")
	out := said(t, f)
	checkSays(t, out, []string{"Both ends shared one CPU.", "The same path measured twice agreed within", "On veth, kube-proxy with iptables slows all pod traffic", "On veth, Mustang's eBPF speeds up all pod traffic",
		"On macvlan, kube-proxy with iptables costs all pod traffic nothing", "With BIG TCP, veth+eBPF carries"}, []string{"loopback", "~", "big-tcp"})
	medians := map[string]float64{}
	for _, r := range f.Rows {
		medians[r.Workload+r.ID] = r.Median
	}
	plural := map[string]string{result.WorkloadTCPStream: "streams", result.WorkloadTCPRR: "requests", result.WorkloadTCPCRR: "connections"}
	ranked := 0
	for _, c := range f.Run.Comparisons {
		link, _, _ := strings.Cut(c.Numerator, "/")
		link = strings.TrimSuffix(strings.ReplaceAll(link, "+ebpf", "+eBPF"), "-call-off")
		by := math.Abs(100 * (c.Ratio - 1))
		figure := strconv.FormatFloat(by, 'f', map[bool]int{true: 1, false: 0}[by < 2.95], 64) + " %"
		switch c.Asks {
		case result.AsksRank:
			ranked++
			sentence := regexp.MustCompile(`for ` + plural[c.Workload] + `: ([\d.,]+)(?:/s| Gbit/s)\.(?: [^:]*?)? ` + regexp.QuoteMeta(link) + ` (\S+ %)`).FindStringSubmatch(out)
			if sentence == nil || sentence[2] != figure {
				t.Errorf("%s, %s: %q, want %s", c.Workload, link, sentence, figure)
				continue
			}
			if best, err := strconv.ParseFloat(strings.ReplaceAll(sentence[1], ",", ""), 64); err != nil || math.Abs(best/medians[c.Workload+c.Denominator]-1) > 0.01 {
				t.Errorf("%s: the best has %s, in the file %g (%v)", c.Workload, sentence[1], medians[c.Workload+c.Denominator], err)
			}
		case result.AsksTotal:
			want := fmt.Sprintf("%+.0f", 100*(c.Ratio-1))
			if want = strings.Replace(want, "-", "−", 1); !strings.Contains(out, want+"±") {
				t.Errorf("%s: no cell %s±", c.Name, want)
			}
		}
	}
	if ranked == 0 {
		t.Error("the file ranks no links")
	}
	for where, wide := range map[string]string{"tables": textOf(t, f, render.Options{Wide: true}), "page": wordsOf(pageOf(t, f))} {
		checkSays(t, strings.Join(strings.Fields(wide), " "), []string{"cost of all traffic", "cost of a Service on top", "both costs", "BIG TCP", "veth: cluster-ip/nftables over pod-ip/nftables"}, nil)
		if where == "page" {
			checkSays(t, wide, []string{"What Services cost"}, nil)
		}
	}
}

// TestBoundsReplaceTildes checks that no answer on links has a bare tilde, and that each figure without a difference has a bound.
func TestBoundsReplaceTildes(t *testing.T) {
	for _, name := range []string{"recorded-links", "recorded-pod-links", "recorded-pod-links-ipv6", "made-up", "turns", "noisy", "counted"} {
		out := briefOf(t, sample(t, name), 0)
		if strings.ContainsAny(out, "~≈?") {
			t.Errorf("%s:\n%s", name, out)
		}
		for _, part := range strings.Split(strings.Join(strings.Fields(out), " "), "nothing")[1:] {
			if !regexp.MustCompile(`^ \(within [\d.]+ %\)|^ was measured`).MatchString(part) { // the last is a note of made-up files
				t.Errorf("%s: no bound behind nothing: %q", name, part)
			}
		}
	}
}
