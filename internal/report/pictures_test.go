// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	xhtml "golang.org/x/net/html"

	"mustang/internal/report"
	"mustang/internal/report/html"
	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// TestCostPicture checks that the picture of costs has both parts of a cost where they were compared, else the total.
func TestCostPicture(t *testing.T) {
	plain, service := podRow("plain", 40, 39, 41), cluster("plain", "nftables")
	proxied := withProxy(podRow("plain", 37, 36, 38), "nftables")
	service.Proxy = "nftables"
	total := asking(result.AsksTotal, service.ID, "plain/pod-ip", [3]float64{0.9, 0.89, 0.91})
	all := asking(result.AsksProxy, proxied.ID, "plain/pod-ip", [3]float64{0.92, 0.91, 0.93})
	onTop := asking(result.AsksService, service.ID, proxied.ID, [3]float64{0.98, 0.97, 0.99})
	for _, tc := range []struct {
		name        string
		comparisons []result.Comparison
		labels      []string
	}{
		{"total alone", []result.Comparison{total}, []string{"nft, both costs"}},
		{"both parts", []result.Comparison{total, all, onTop}, []string{"nft, all traffic", "nft, a Service on top"}},
		{"one part", []result.Comparison{total, all}, []string{"nft, all traffic"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := report.New(linksFile(t, []result.Row{plain, proxied, service}, tc.comparisons...))
			testkit.Succeed(t, err)
			suite := r.Suites[0]
			testkit.Require(t, len(suite.Workloads[0].Services) == 1, "no picture of costs")
			var labels []string
			for _, m := range suite.Workloads[0].Services[0].Marks {
				labels = append(labels, m.Label)
			}
			testkit.Check(t, slices.Equal(labels, tc.labels), "marks %q, want %q", labels, tc.labels)
		})
	}
}

// The samples "recorded-" are of real runs on a busy machine with two CPUs, with two samples of each
// connection and six ratios of each comparison.

// TestMethodIsTrue checks the sentences on the rounds, and on how to repeat the run.
func TestMethodIsTrue(t *testing.T) {
	r := reportOf(t, sample(t, "recorded-pod-links"))
	var facts strings.Builder
	for _, group := range r.Facts {
		for _, fact := range group.Facts {
			facts.WriteString(fact.Name + ": " + fact.Value + "\n")
		}
	}
	checkSays(t, facts.String(), []string{"slow rows take part in fewer rounds", "Rounds: 11 to 84, by the row",
		"iptables: v1.8.9 (nf_tables)", "nft: v1.0.6"},
		[]string{"every row once", "iptables: iptables"})
	checkSays(t, r.Command, []string{"--time"}, []string{"--slice"})
	checkSays(t, reportOf(t, sample(t, "turns")).Command, []string{"--slice 10ms"}, nil)
}

// TestAnswersTheQuestion checks that the answer of a suite fits its question.
func TestAnswersTheQuestion(t *testing.T) {
	for name, want := range map[string][]string{
		"two-cpus": {"Throughput, Two CPUs against one: ratio 9 to 22 % in 7 pairs; no difference found in 7."},
		"pod-links-ipv6": {"Request/response, IPv6 against IPv4: ratio 95.7 to 98.6 % in 5 pairs; no difference found in 5.",
			"veth (IPv6) iptables both costs", "macvlan (IPv6) 30.7 "},
		"latency":   {"macvlan has the highest figure for requests", "macvlan 17.7 0.4 (0.3 to 0.5)"},
		"engines":   {"Throughput, iperf3 against native: ratio 83 to 119 % in 4 pairs; no difference found in 4."},
		"switching": {"Open vSwitch (in user space) against a Linux bridge: ratio 1.2 to 3.5 % in 6 pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			f := sample(t, "recorded-"+name)
			checkSays(t, strings.Join(strings.Fields(briefOf(t, f, 0)), " "), want, []string{"better in 0"})
			checkSays(t, wordsOf(pageOf(t, f)), want[:1], nil)
		})
	}
}

// TestLongNotesLeaveTheTable checks that the best link keeps its line where notes take room.
func TestLongNotesLeaveTheTable(t *testing.T) {
	f := sample(t, "recorded-pod-links")
	f.Run.Notes = slices.Repeat([]string{strings.Repeat("A long note. ", 14)}, 2)
	checkSays(t, briefOf(t, f, 0), []string{"\n  macvlan "}, nil)
}

// TestFailuresOfOneReason checks that a reason which names each row's own lab is one line, cut between words.
func TestFailuresOfOneReason(t *testing.T) {
	f := sample(t, "recorded-switching")
	out := strings.Join(strings.Fields(briefOf(t, f, 0)), " ")
	checkSays(t, out, []string{"and 6 more: apt-get download: exit status 100: E: Failed to fetch"},
		[]string{"bench-1825"})
	n := strings.Count(out, "failed: ")
	testkit.Check(t, n == 1, "%d lines on failures:\n%s", n, out)
	testkit.Check(t, !regexp.MustCompile(`\S…`).MatchString(out), "a word is cut:\n%s", out)
}

// sample reads a file of testdata, whose figures are made up: "made-up" of the suite
// pod-links, "suites" of all suites, or "counted" of counted instructions.
func sample(t testing.TB, name string) result.File {
	t.Helper()
	f, err := result.Read("testdata/" + name + ".json")
	testkit.Succeed(t, err)
	return f
}

func oneSuite(t testing.TB, name string) result.File {
	t.Helper()
	f := sample(t, "suites")
	f.Run.Suite = name
	f.Suites = slices.DeleteFunc(f.Suites, func(s result.Suite) bool { return s.Name != name })
	f.Rows = slices.DeleteFunc(f.Rows, func(r result.Row) bool { return r.Suite != name })
	f.Run.Comparisons = slices.DeleteFunc(f.Run.Comparisons, func(c result.Comparison) bool { return c.Suite != name })
	return f
}

func reportOf(t testing.TB, f result.File) *report.Report {
	t.Helper()
	r, err := report.New(f)
	testkit.Succeed(t, err)
	return r
}

func textOf(t testing.TB, f result.File, o render.Options) string {
	t.Helper()
	var b strings.Builder
	testkit.Succeed(t, render.Text(&b, reportOf(t, f), o))
	return b.String()
}

func pageOf(t testing.TB, f result.File) string {
	t.Helper()
	var b strings.Builder
	testkit.Succeed(t, html.Write(&b, reportOf(t, f)))
	return b.String()
}

func wordsOf(page string) string {
	var b strings.Builder
	_, page, _ = strings.Cut(page, "</style>")
	page, _, _ = strings.Cut(page, "<script>")
	z := xhtml.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case xhtml.ErrorToken:
			return strings.Join(strings.Fields(b.String()), " ")
		case xhtml.TextToken:
			b.WriteString(z.Token().Data + " ")
		}
	}
}

// renderings are f's report as text and as words of a page, with plain spaces.
func renderings(t testing.TB, f result.File) map[string]string {
	return map[string]string{
		"text": strings.Join(strings.Fields(briefOf(t, f, 0)+textOf(t, f, render.Options{})), " "),
		"page": wordsOf(pageOf(t, f)),
	}
}

// truncated is f after n rounds: without intervals under six.
func truncated(f result.File, n int) result.File {
	f.Rows = slices.Clone(f.Rows)
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Samples = row.Samples[:min(n, len(row.Samples))]
		if n < 6 {
			row.CI95 = nil
		}
	}
	f.Run.Comparisons = slices.Clone(f.Run.Comparisons)
	for i := range f.Run.Comparisons {
		c := &f.Run.Comparisons[i]
		c.Ratios = c.Ratios[:min(n, len(c.Ratios))]
		if n < 6 {
			c.CI95 = nil
		}
	}
	return f
}

// checkSays checks that got has all wanted parts and none of the others.
func checkSays(t *testing.T, got string, want, never []string) {
	t.Helper()
	got = strings.ReplaceAll(got, "\u00a0", " ")
	for _, part := range want {
		testkit.Check(t, strings.Contains(got, part), "%.2000s\ndoes not say %q", got, part)
	}
	for _, part := range never {
		testkit.Check(t, !strings.Contains(got, part), "%.2000s\nsays %q", got, part)
	}
}
