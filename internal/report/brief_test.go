// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// briefOf prints f's answer for a terminal.
func briefOf(t testing.TB, f result.File, width int) string {
	t.Helper()
	var b strings.Builder
	testkit.Succeed(t, render.Answer(&b, reportOf(t, f), "Results: results.json", render.Options{Width: width}))
	return b.String()
}

// TestBriefGolden compares answers to stored ones.
func TestBriefGolden(t *testing.T) {
	for _, name := range []string{"made-up", "suites", "counted", "turns"} {
		golden(t, "brief-"+name+".txt", briefOf(t, sample(t, name), 0))
	}
}

const mostLines = 40 // the room of an answer

// TestBriefFits checks that the answer of a suite is at most 40 lines of 100 columns, and ends
// with the names of the files.
func TestBriefFits(t *testing.T) {
	files := map[string]result.File{"made-up": sample(t, "made-up"), "counted": sample(t, "counted"), "noisy": sample(t,
		"noisy"),
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
			testkit.Check(t, width == 80 || len(lines) <= mostLines,
				"%s: %d lines:\n%s", name, len(lines), strings.Join(lines, "\n"))
			for _, line := range lines {
				n := utf8.RuneCountInString(line)
				testkit.Check(t, width == 80 || n <= 100, "%s: %d columns: %q", name, n, line)
			}
			last := lines[len(lines)-1]
			testkit.Check(t, last == "Results: results.json", "%s: the last line is %q", name, last)
		}
	}
	n := strings.Count(briefOf(t, failed, 0), "failed: ")
	testkit.Check(t, n == 3, "%d lines on failures", n)
}

// TestBriefOfLargeRun checks that the costs of twelve links under three workloads are cut to 40 lines of 100 columns,
// and whole in a wide answer.
func TestBriefOfLargeRun(t *testing.T) {
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Run: result.Run{Suite: "pod-links"}}
	for _, workload := range []string{result.WorkloadTCPStream, result.WorkloadTCPRR, result.WorkloadTCPCRR} {
		for link := range 12 {
			id := fmt.Sprintf("link-%d", link)
			row := podRow(id, 50-float64(link), 49-float64(link), 51-float64(link))
			row.Workload, row.Link = workload, id
			f.Rows = append(f.Rows, row)
			for j, via := range []string{result.ViaIPTables, result.ViaNFTables, result.ViaEBPFSocket} {
				service := row
				service.ID, service.Target, service.Via, service.Proxy = id+"/cluster-ip/"+via, result.TargetClusterIP, via, via
				f.Rows = append(f.Rows, service)
				ratio := 0.8 + 0.1*float64(j) // the last differs in nothing
				c := versus(service.ID, row.ID, 10, [3]float64{ratio, ratio - 0.12, ratio + 0.12})
				c.Workload, c.Asks = workload, result.AsksTotal
				f.Run.Comparisons = append(f.Run.Comparisons, c)
			}
		}
	}
	for _, wide := range []bool{false, true} {
		var b strings.Builder
		testkit.Succeed(t, render.Answer(&b, reportOf(t, f), "", render.Options{Wide: wide}))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		costs := len(regexp.MustCompile(`(?m)^  link-\d+ .*both costs +\S+ % ±|both costs +within`).FindAllString(b.String(),
			-1))
		widest := slices.MaxFunc(lines,
			func(a, b string) int { return utf8.RuneCountInString(a) - utf8.RuneCountInString(b) })
		if !wide && (len(lines) > mostLines || costs < 10) || wide && costs != 36 || utf8.RuneCountInString(widest) > 100 {
			t.Errorf("%d costs in %d lines, one of them %q:\n%s", costs, len(lines), widest, b.String())
		}
	}
}

// TestFactorsAndDigits checks that large differences are factors, and that a slow row beside a
// fast one keeps its digits.
func TestFactorsAndDigits(t *testing.T) {
	rows := []result.Row{podRow("veth", 65_900, 65_000, 66_000), podRow("tun", 9996, 9990, 10_000),
		podRow("macvlan", 5.24, 5.2, 5.3)}
	f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: rows,
		Run: result.Run{Suite: "pod-links", Comparisons: []result.Comparison{
			versus("veth/pod-ip", "tun/pod-ip", 10, [3]float64{6.593, 6.1, 7.2}),
		}}}
	for _, got := range renderings(t, f) {
		checkSays(t, got, []string{"9,996", "5.24"}, []string{"559.3 %", "100 % less"})
	}
	checkSays(t, briefOf(t, f, 0), []string{"65,900", "10,000", "5.24"}, nil)
}

// TestNotMeasured checks that skipped rows are one line with the reasons, at any height, and that the page and the
// tables have the same line.
func TestNotMeasured(t *testing.T) {
	skip := func(id, via, reason string) result.Row {
		row := podRow(id, 0, 0, 0)
		row.Status, row.Reason, row.CI95, row.Median, row.Samples = result.StatusSkipped, reason, nil, 0, nil
		if via != result.ViaNone {
			row.ID, row.Target, row.Via = id+"/cluster-ip/"+via, result.TargetClusterIP, via
		}
		return row
	}
	const noQEMU, noTables = "qemu-system-x86_64 is missing: apt install qemu-system-x86",
		"iptables is missing: apt install iptables"
	lacking := func(link string) result.Row {
		return skip(link, result.ViaNone, "link mode "+link+": kernel 6.18 has no "+link+" devices")
	}
	measured := podRow("veth", 30, 29, 31)
	for want, rows := range map[string][]result.Row{
		"not measured: ipvlan-l2, netkit: missing in this kernel": {lacking("ipvlan-l2"), lacking("netkit")},
		"not measured: cluster IP by iptables: " + noTables:       {skip("veth", result.ViaIPTables, noTables)},
		"not measured: macvlan, bridge-call-on, bridge-call-off and 1 more: " +
			noQEMU: {skip("macvlan", result.ViaNone, noQEMU), skip("bridge-call-on", result.ViaNone, noQEMU),
			skip("bridge-call-off", result.ViaNone, noQEMU), skip("tun-offload", result.ViaNone, noQEMU)},
		"not measured: netkit: missing in this kernel; bridge: " +
			noQEMU: {lacking("netkit"), skip("bridge", result.ViaNone, noQEMU)},
	} {
		f := result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: append(rows, measured),
			Run: result.Run{Suite: "pod-links"}}
		checkSays(t, said(t, f), []string{want}, nil)
		for _, got := range renderings(t, f) {
			checkSays(t, got, []string{want}, nil)
		}
	}
}

// TestReadmeShowsAnAnswer compares README's example with the output for a recorded run.
func TestReadmeShowsAnAnswer(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	testkit.Succeed(t, err)
	answer := briefOf(t, sample(t, "recorded-links"), 0)
	_, answer, _ = strings.Cut(answer, "v669\n")            // the line on the run
	answer, _, _ = strings.Cut(answer, "  link     proxy ") // the second table
	testkit.Check(t, len(answer) >= 1000 && strings.Contains(string(readme), "```text\n"+answer+"```\n"),
		"README shows another answer than\n%s", answer)
}
