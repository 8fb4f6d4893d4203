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
	"mustang/internal/testkit"
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

func again(half float64) result.Comparison {
	c := asking("", "plain/pod-ip/again", "plain/pod-ip", [3]float64{1, 1 - half, 1 + half})
	c.AA = true
	return c
}

func ofEBPF(row result.Row) result.Row {
	row.ID = strings.Replace(row.ID, "/", "+ebpf/", 1)
	row.Datapath, row.Proxy = result.DatapathEBPF, result.ViaEBPFTC
	return row
}

func withProxy(row result.Row, proxy string) result.Row {
	row.ID, row.Proxy = row.ID+"/"+proxy, proxy
	return row
}

func under(workload, unit string, rows []result.Row, comparisons []result.Comparison) ([]result.Row,
	[]result.Comparison) {
	rows, comparisons = slices.Clone(rows), slices.Clone(comparisons)
	for i := range rows {
		rows[i].Workload, rows[i].Unit = workload, unit
	}
	for i := range comparisons {
		comparisons[i].Workload = workload
	}
	return rows, comparisons
}

func linksFile(t *testing.T, rows []result.Row, comparisons ...result.Comparison) result.File {
	return result.File{Schema: result.Schema, Suites: []result.Suite{podLinks(t)}, Rows: rows,
		Run: result.Run{Suite: "pod-links", Comparisons: comparisons}}
}

func said(t *testing.T, f result.File) string {
	t.Helper()
	return strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
}

// TestEachWorkloadByItsNoise makes streams noisy: requests have their answer all the same.
func TestEachWorkloadByItsNoise(t *testing.T) {
	rows := []result.Row{podRow("plain", 40, 39, 41), podRow("fast", 50, 49, 51)}
	quiet := []result.Comparison{again(0.005), asking(result.AsksRank, "plain/pod-ip", "fast/pod-ip",
		[3]float64{0.8, 0.79, 0.81})}
	noisy := []result.Comparison{again(0.4), asking(result.AsksRank, "plain/pod-ip", "fast/pod-ip",
		[3]float64{0.8, 0.5, 1.2})}
	f := linksFile(t, rows, noisy...)
	requests, found := under(result.WorkloadTCPRR, result.UnitTransactions, rows, quiet)
	f.Rows, f.Run.Comparisons = append(f.Rows, requests...), append(f.Run.Comparisons, found...)
	f.Run.Notes = []string{"Not reliable: other programs kept 1.9 of 2 CPUs busy. Repeat the run on a quiet machine."}
	out := said(t, f)
	checkSays(t, out, []string{
		"fast has the highest figure for streams: 50.0 Gbit/s. Not certain: plain (within 50 %).",
		"fast has the highest figure for requests: 50.0/s.",
		"One path measured twice may differ by 40 % (streams), 0.5 % (requests).",
		"Not reliable: other programs kept 1.9 of 2 CPUs busy. Repeat the run on a quiet machine.",
	}, []string{"names no best", "too noisy"})
	if strings.Index(out, "Not reliable: ") > strings.Index(out, "fast has") || strings.Contains(out, "More certain") {
		t.Errorf("a disturbed run says so first, and asks for no more time: %s", out)
	}
}

// TestRecordedLinks checks the answer of a recorded run against its figures: each sentence and each line agrees with
// the file.
func TestRecordedLinks(t *testing.T) {
	f := sample(t, "recorded-links")
	out := said(t, f)
	checkSays(t, out, []string{"Both ends shared one CPU.", "One path measured twice may differ by",
		"With BIG TCP, veth+eBPF is faster"}, []string{"loopback", "big-tcp"})
	ranked := 0
	for _, c := range f.Run.Comparisons {
		link, _, _ := strings.Cut(c.Numerator, "/")
		link = strings.TrimSuffix(strings.ReplaceAll(link, "+ebpf", "+eBPF"), "-call-off")
		switch c.Asks {
		case result.AsksRank:
			ranked++
			if want := strconv.FormatFloat(c.Ratio, 'f', 3, 64) + "±"; !regexp.MustCompile(` ` + regexp.QuoteMeta(link) +
				` [^a-z]*` + want).MatchString(out) {
				t.Errorf("%s, %s: no ratio %s", c.Workload, link, want)
			}
		case result.AsksService, result.AsksProxy:
			want := fmt.Sprintf("%+.0f", 100*(c.Ratio-1))
			if want = strings.Replace(want, "-", "−", 1) + "\u00a0% ±"; math.Abs(c.Ratio-1) > 0.03 &&
				!strings.Contains(out, strings.ReplaceAll(want, "\u00a0", " ")) {
				t.Errorf("%s: no cell %s", c.Name, want)
			}
		}
	}
	testkit.Check(t, ranked != 0, "the file ranks no links")
	for where, wide := range map[string]string{"tables": textOf(t, f, render.Options{Wide: true}), "page": wordsOf(pageOf(
		t, f))} {
		checkSays(t, strings.Join(strings.Fields(wide), " "), []string{"cost of all traffic", "cost of a Service on top",
			"both costs", "BIG TCP", "veth: cluster-ip/nftables over pod-ip/nftables"}, nil)
		if where == "page" {
			checkSays(t, wide, []string{"What Services cost"}, nil)
		}
	}
}
