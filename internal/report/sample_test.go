// SPDX-License-Identifier: Apache-2.0

package report_test

import (
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

// wordsOf are the texts of a page, with plain spaces.
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
