// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"mustang/internal/report/text"
	"mustang/internal/result"
)

// briefOf prints f's answer for a terminal.
func briefOf(t testing.TB, f result.File, width int) string {
	t.Helper()
	var b strings.Builder
	if err := text.Answer(&b, reportOf(t, f), "Results: results.json", text.Options{Width: width}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestBriefGolden compares answers to stored ones.
func TestBriefGolden(t *testing.T) {
	for _, name := range []string{"made-up", "suites", "counted", "turns"} {
		golden(t, "brief-"+name+".txt", briefOf(t, sample(t, name), 0))
	}
}

// TestBriefFits checks that the answer of a suite is at most 25 lines of 100 columns, and ends
// with the names of the files.
func TestBriefFits(t *testing.T) {
	files := map[string]result.File{"made-up": sample(t, "made-up"), "counted": sample(t, "counted"), "noisy": sample(t, "noisy"),
		"3 rounds": truncated(sample(t, "made-up"), 3), "empty": {Schema: result.Schema}}
	for _, s := range sample(t, "suites").Suites {
		files[s.Name] = oneSuite(t, s.Name)
	}
	failed := truncated(sample(t, "made-up"), 0)
	for i := range failed.Rows {
		row := &failed.Rows[i]
		row.Status, row.Reason, row.CI95, row.Median = result.StatusFailed, fmt.Sprintf("reason %d", i), nil, 0
	}
	failed.Run.Comparisons = nil
	files["failed"] = failed
	for name, f := range files {
		for _, width := range []int{0, 80, 100, 200} {
			lines := strings.Split(strings.TrimSuffix(briefOf(t, f, width), "\n"), "\n")
			if width != 80 && len(lines) > 25 {
				t.Errorf("%s: %d lines:\n%s", name, len(lines), strings.Join(lines, "\n"))
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); width != 80 && n > 100 {
					t.Errorf("%s: %d columns: %q", name, n, line)
				}
			}
			if last := lines[len(lines)-1]; last != "Results: results.json" {
				t.Errorf("%s: the last line is %q", name, last)
			}
		}
	}
	if n := strings.Count(briefOf(t, failed, 0), "failed: "); n != 3 {
		t.Errorf("%d lines on failures", n)
	}
}

// TestBriefOfLargeRun checks that twelve links under three workloads keep the cost of each cluster
// IP with its interval in 25 lines of 100 columns, also in a run of wide intervals.
func TestBriefOfLargeRun(t *testing.T) {
	for name, tc := range map[string]struct {
		half  float64
		links int // that are shown
	}{"quiet": {0.004, 12}, "usual": {0.02, 12}, "noisy": {0.12, 8}} {
		f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links"}}
		for i, workload := range []string{result.WorkloadTCPStream, result.WorkloadTCPRR, result.WorkloadTCPCRR} {
			for link := range 12 {
				id := fmt.Sprintf("link-number-%d", link)
				row := podRow(id, 50-float64(link), 49-float64(link), 51-float64(link))
				row.Workload, row.Link = workload, id
				if i > 0 {
					row.Unit = result.UnitTransactions
				}
				f.Rows = append(f.Rows, row)
				for j, via := range []string{result.ViaIPTables, result.ViaNFTables, result.ViaEBPFSocket} {
					service := row
					service.ID, service.Target, service.Via = id+"/cluster-ip/"+via, result.TargetClusterIP, via
					f.Rows = append(f.Rows, service)
					ratio := 0.8 + 0.1*float64(j) // the last is no difference
					c := versus(service.ID, row.ID, 10, [3]float64{ratio, ratio - tc.half, ratio + tc.half})
					c.Workload = workload
					f.Run.Comparisons = append(f.Run.Comparisons, c)
				}
			}
		}
		lines := strings.Split(strings.TrimSuffix(briefOf(t, f, 0), "\n"), "\n")
		links := 0
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 100 {
				t.Errorf("%s: %d columns: %q", name, utf8.RuneCountInString(line), line)
			}
			if strings.HasPrefix(line, "  link-") && strings.Contains(line, "0.0") {
				links++
				if n := strings.Count(line, "±") + strings.Count(line, "~") - strings.Count(line, "~0"); n != 9 {
					t.Errorf("%s: %d costs of 9: %q", name, n, line)
				}
			}
		}
		if len(lines) > 25 || links < tc.links {
			t.Errorf("%s: %d links in %d lines:\n%s", name, links, len(lines), strings.Join(lines, "\n"))
		}
	}
}

// TestNoise checks that a noisy run says so above the answer and on the page, and claims
// nothing that its figures do not show.
func TestNoise(t *testing.T) {
	const noisy = "This run is too noisy"
	for name, want := range map[string]bool{"noisy": true, "turns": false, "made-up": false, "suites": false} {
		for where, got := range map[string]string{"answer": briefOf(t, sample(t, name), 0), "page": wordsOf(pageOf(t, sample(t, name)))} {
			if strings.Contains(got, noisy) != want {
				t.Errorf("%s: the %s says that it is noisy: %v", name, where, !want)
			}
		}
	}
	out := briefOf(t, sample(t, "noisy"), 0)
	if strings.Index(out, noisy) > strings.Index(out, "macvlan") {
		t.Error("the answer is above the warning")
	}
	checkSays(t, strings.Join(strings.Fields(out), " "), []string{"the same path in the kernel measured twice may differ by a factor of 14.7 in throughput. Repeat it on a quiet machine"}, nil)

	disturbed := sample(t, "noisy") // by others too: one line tells both
	disturbed.Run.Notes = []string{"Others kept 1.7 CPUs busy. Repeat the run on a quiet machine."}
	for where, got := range map[string]string{"answer": briefOf(t, disturbed, 0), "page": wordsOf(pageOf(t, disturbed))} {
		got = strings.Join(strings.Fields(got), " ")
		checkSays(t, got, []string{"by a factor of 14.7 in throughput. Others kept 1.7 CPUs busy. Repeat it on a quiet machine."}, nil)
		if n := strings.Count(got, "on a quiet machine"); n != 1 {
			t.Errorf("the %s advises %d times to repeat the run", where, n)
		}
	}

	wide := sample(t, "turns")
	for i := range wide.Run.Comparisons {
		if c := &wide.Run.Comparisons[i]; !c.AA {
			c.CI95 = &[2]float64{c.Ratio * 0.93, c.Ratio * 1.07}
		}
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, wide, 0)), " "), []string{"half of its comparisons of paths in the kernel are uncertain by 7.0 % or more"}, nil)
}

// TestNoFalseCalm checks what is said of figures that lie far apart without a verdict, of a
// spread beyond all sense, and of rows that lost most of what they were sent.
func TestNoFalseCalm(t *testing.T) {
	f := sample(t, "noisy") // macvlan is eight times as fast as tun, and veth lost 97 %
	for where, got := range map[string]string{"answer": briefOf(t, f, 0), "text": renderings(t, f)["text"], "page": wordsOf(pageOf(t, f))} {
		t.Run(where, func(t *testing.T) {
			got = strings.Join(strings.Fields(got), " ")
			checkSays(t, got, []string{"97.0 % lost", "tun"},
				[]string{"1,365", "tied with it: tun", "macvlan and tun are tied", "all others are tied", "no way of connecting pods stands out", "no difference was found between"})
		})
	}
	checkSays(t, briefOf(t, f, 0), []string{"cannot be told from it: tun", "names no best way"}, []string{"choose"})
}

// TestNoTieInNoise checks that rows are not called tied where the interval of their ratio reaches a factor of two, or where as much
// lies between two measurements of one row.
func TestNoTieInNoise(t *testing.T) {
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links"},
		Rows: []result.Row{podRow("macvlan", 40, 39, 41), podRow("veth", 39, 38, 40)}}
	for _, tc := range []struct {
		interval, again [3]float64
		want, never     string
	}{
		{[3]float64{0.98, 0.9, 1.05}, [3]float64{1, 0.99, 1.01}, "all others are tied with it", "cannot be told"},
		{[3]float64{0.98, 0.3, 3}, [3]float64{1, 0.99, 1.01}, "cannot be told from it: veth", "tied"},
		{[3]float64{0.9, 0.8, 1.05}, [3]float64{1, 0.6, 1.7}, "cannot be told from it: veth", "tied"},
	} {
		f.Run.Comparisons = []result.Comparison{versus("veth/pod-ip", "macvlan/pod-ip", 10, tc.interval), versus("macvlan/pod-ip/again", "macvlan/pod-ip", 10, tc.again)}
		f.Run.Comparisons[1].AA = true
		checkSays(t, briefOf(t, f, 0), []string{tc.want}, []string{tc.never})
	}
	f.Run.Comparisons, f.Rows[1].CI95 = nil, &[2]float64{15, 90} // which the figures alone are judged by
	checkSays(t, briefOf(t, f, 0), []string{"cannot be told from it: veth"}, []string{"tied"})
}

// TestRoughCost checks that a cost whose interval is wider than itself is not given as a figure
// of three digits.
func TestRoughCost(t *testing.T) {
	f := sample(t, "turns") // veth+ebpf has 0.901 in 0.49 to 0.99
	for where, got := range renderings(t, f) {
		want := map[string][]string{"text": {"about 10 % with veth+eBPF", "with macvlan"}, "page": {"0.90"}}
		checkSays(t, got, want[where], []string{"9.9 %"})
	}
	checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), []string{"≈10±42", "≈ uncertain by more than the difference"}, nil)
}

// TestProxyAdvice checks that iptables and nftables are only ranked by a verdict.
func TestProxyAdvice(t *testing.T) {
	f := sample(t, "turns")
	const advice = "If kube-proxy must stay, nftables costs less than iptables: 5 % against 9 % (macvlan, throughput)"
	says := func() string { return strings.Join(strings.Fields(briefOf(t, f, 0)), " ") }
	checkSays(t, says(), []string{"On this machine choose macvlan.", advice}, nil)
	for i := range f.Run.Comparisons {
		if c := &f.Run.Comparisons[i]; c.Ranking && strings.HasSuffix(c.Numerator, "nftables") {
			c.Verdict = result.VerdictNone
		}
	}
	checkSays(t, says(), []string{"On this machine choose macvlan."}, []string{"kube-proxy"})
}

// TestNothingToChoose checks that a single row and too few rounds give no advice.
func TestNothingToChoose(t *testing.T) {
	only := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: []result.Row{podRow("veth", 30, 29, 31)}, Run: result.Run{Suite: "pod-links"}}
	checkSays(t, briefOf(t, only, 0), []string{"only veth has a figure, 30.00 Gbit/s", "names no best way"}, []string{"choose", "stands out"})
	checkSays(t, briefOf(t, truncated(sample(t, "made-up"), 3), 0), []string{"too few rounds", "names no best way"}, []string{"choose", "stands out", "tied", "kube-proxy"})
}

// TestFactorsAndDigits checks that large differences are factors, and that a slow row beside a
// fast one keeps its digits.
func TestFactorsAndDigits(t *testing.T) {
	rows := []result.Row{podRow("veth", 65_900, 65_000, 66_000), podRow("tun", 4.61, 4.6, 4.7), podRow("macvlan", 5.24, 5.2, 5.3)}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: rows, Run: result.Run{Suite: "pod-links", Comparisons: []result.Comparison{
		versus("veth/pod-ip", "tun/pod-ip", 10, [3]float64{6.593, 6.1, 7.2}),
	}}}
	for _, got := range renderings(t, f) {
		checkSays(t, got, []string{"6.6× as fast", "4.61", "5.24"}, []string{"559.3 %"})
	}
	checkSays(t, briefOf(t, f, 0), []string{"65,900", "4.61", "5.24"}, nil)
}

// TestWideComparisons checks that wide tables have the verdicts and the levels' shares of
// comparisons, and those that rank.
func TestWideComparisons(t *testing.T) {
	f := sample(t, "turns")
	wide := strings.Join(strings.Fields(textOf(t, f, text.Options{Wide: true})), " ")
	checkSays(t, wide, []string{"verdict over p adjusted labs processes connections rounds", "lower lab 0.001 0.004 60 10 10 20", "Ranking, throughput"}, nil)
	checkSays(t, textOf(t, f, text.Options{}), nil, []string{"processes", "Ranking"})
}

// TestFewRoundsAreNamed checks that rows of too few rounds are named, and spoil no verdict on the others.
func TestFewRoundsAreNamed(t *testing.T) {
	few := podRow("tun", 0.4, 0, 0)
	few.Samples, few.CI95 = few.Samples[:3], nil
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links"},
		Rows: []result.Row{podRow("macvlan", 40, 39, 41), podRow("veth", 39.5, 38, 41), few}}
	const answer, page = "Throughput: macvlan, 40.00 Gbit/s; tied with it: veth; too few rounds to compare: tun.", "No single fastest: this run cannot tell the 2 ways apart. Too few rounds to compare tun."
	wide := strings.Join(strings.Fields(textOf(t, f, text.Options{Wide: true})), " ")
	checkSays(t, briefOf(t, f, 0), []string{answer, "names no best way"}, []string{"to say more"})
	checkSays(t, wordsOf(pageOf(t, f)), []string{page}, []string{"to say more"})
	checkSays(t, wide, []string{"no way of connecting pods stands out", "Too few rounds to compare tun."}, []string{"10 rounds are too few"})
	f.Rows = append(f.Rows, podRow("bridge", 30, 29, 31)) // which is worse, and better than tun
	checkSays(t, briefOf(t, f, 0), []string{answer[:len(answer)-1]}, nil)
	f.Rows = slices.Delete(f.Rows, 1, 2)
	checkSays(t, wordsOf(pageOf(t, f)), []string{"macvlan is the fastest of 2 ways: 40.00 Gbit/s. Too few rounds to compare tun.", "choose macvlan."}, nil)
	f.Rows = []result.Row{podRow("macvlan", 40, 39, 41), few}
	wide = strings.Join(strings.Fields(textOf(t, f, text.Options{Wide: true})), " ")
	checkSays(t, wide, []string{"macvlan has the highest figure", "the rounds of tun are too few to say which way is the best"}, []string{"10 rounds are"})
}

// TestNamedRowsHaveLines checks that each way that the sentences name has a line in the table, however many others there are, and
// that the legend explains the signs of the lines that are shown, and no others.
func TestNamedRowsHaveLines(t *testing.T) {
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links"}}
	for i := range 30 {
		row := podRow(fmt.Sprintf("way-%02d", i), 50-float64(i), 49.8-float64(i), 50.2-float64(i))
		f.Rows = append(f.Rows, row)
		row.Workload, row.Unit = result.WorkloadTCPRR, result.UnitTransactions
		row.Median, row.CI95 = 1000+float64(i), &[2]float64{999 + float64(i), 1001 + float64(i)}
		f.Rows = append(f.Rows, row)
	}
	service := cluster("way-20", result.ViaIPTables)
	f.Rows = append(f.Rows, service)
	f.Run.Comparisons = []result.Comparison{versus(service.ID, "way-20/pod-ip", 10, [3]float64{1, 0.9, 1.1})}
	out := briefOf(t, f, 0)
	checkSays(t, strings.Join(strings.Fields(out), " "), []string{"Request/response: way-29, 1,029", "tied with it: way-28, way-27.", "and ", " more of 30", "~ no difference found. – none."}, []string{"? this run"})
	for _, name := range []string{"way-00", "way-29", "way-28", "way-27", "way-20"} {
		if !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("no line of %s:\n%s", name, out)
		}
	}
	f.Run.Comparisons = nil // and so no line has a cost
	checkSays(t, briefOf(t, f, 0), nil, []string{"~ no difference", "– none"})
}

// TestUncertainRowIsNoChoice gives the slowest connection an interval that no difference from the
// best is found in. It ranks below connections that are slower than the best, and so is not tied
// with it; nor is it slower.
func TestUncertainRowIsNoChoice(t *testing.T) {
	f := sample(t, "made-up")
	const last, best = "veth/pod-ip", "macvlan+ebpf/pod-ip"
	f.Run.Comparisons = append(f.Run.Comparisons, result.Comparison{
		Name: "a wide one", Suite: f.Rows[0].Suite, Workload: result.WorkloadTCPStream, Numerator: best, Denominator: last,
		Ratios: []float64{0.9, 1.1, 1.2, 1.2, 1.3, 1.6}, Ratio: 1.2, CI95: &[2]float64{0.9, 1.6}, Verdict: result.VerdictNone,
	})
	for where, out := range map[string]string{"answer": briefOf(t, f, 0), "page": wordsOf(pageOf(t, f))} {
		for _, claim := range []string{"tied with it: macvlan, veth", "macvlan+eBPF, macvlan and veth are tied", "choose macvlan+eBPF, macvlan or veth"} {
			if strings.Contains(out, claim) {
				t.Errorf("the %s says %q", where, claim)
			}
		}
	}
	if out := briefOf(t, f, 0); !strings.Contains(out, "tied with it: macvlan; cannot be told from it: veth.") {
		t.Errorf("the answer does not name the tie, and what it cannot tell:\n%s", out)
	}
	if out := wordsOf(pageOf(t, f)); !strings.Contains(out, "No single fastest: this run cannot tell 3 of 6 ways apart") {
		t.Errorf("the page does not count what it cannot tell from the best:\n%s", out)
	}
}

// TestNotMeasured checks that what was skipped is one line with the reasons, whatever fits, and
// that the page and the tables say the same.
func TestNotMeasured(t *testing.T) {
	skip := func(id, via, reason string) result.Row {
		row := podRow(id, 0, 0, 0)
		row.Status, row.Reason, row.CI95, row.Median, row.Samples = result.StatusSkipped, reason, nil, 0, nil
		if via != result.ViaNone {
			row.ID, row.Target, row.Via = id+"/cluster-ip/"+via, result.TargetClusterIP, via
		}
		return row
	}
	const noQEMU, noTables = "qemu-system-x86_64 is missing: apt install qemu-system-x86", "iptables is missing: apt install iptables"
	lacking := func(link string) result.Row {
		return skip(link, result.ViaNone, "link mode "+link+": kernel 6.18 has no "+link+" devices")
	}
	measured := podRow("veth", 30, 29, 31)
	for want, rows := range map[string][]result.Row{
		"not measured: netkit: this kernel lacks it":                   {lacking("netkit")},
		"not measured: ipvlan-l2, netkit: this kernel lacks them":      {lacking("ipvlan-l2"), lacking("netkit")},
		"not measured: bridge: " + noQEMU:                              {skip("bridge", result.ViaNone, noQEMU)},
		"not measured: cluster IP by iptables: " + noTables:            {skip("veth", result.ViaIPTables, noTables)},
		"not measured: macvlan and 3 more: " + noQEMU:                  {skip("macvlan", result.ViaNone, noQEMU), skip("bridge-call-on", result.ViaNone, noQEMU), skip("bridge-call-off", result.ViaNone, noQEMU), skip("tun-offload", result.ViaNone, noQEMU)},
		"not measured: this kernel lacks 1 path; " + noQEMU:            {lacking("netkit"), skip("bridge", result.ViaNone, noQEMU)},
		`not measured: 3 paths; "mustang bench --list pod-links" says`: {lacking("netkit"), skip("bridge", result.ViaNone, noQEMU), skip("veth", result.ViaIPTables, noTables)},
	} {
		f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: append(rows, measured), Run: result.Run{Suite: "pod-links"}}
		out := briefOf(t, f, 0)
		if !strings.Contains(out, want) || strings.Count(out, "not measured") != 1 {
			t.Errorf("want %q in:\n%s", want, out)
		}
		all := reportOf(t, f).Suites[0].NotMeasured(0) // has room for all names
		for where, got := range renderings(t, f) {
			if got = strings.Join(strings.Fields(got), " "); !strings.Contains(got, all) || strings.Contains(got, "skipped or failed.") {
				t.Errorf("the %s does not say %q:\n%s", where, all, got)
			}
		}
	}
}
