// SPDX-License-Identifier: Apache-2.0

package report

import (
	"flag"
	"os"
	"strings"
	"testing"

	"mustang/internal/result"
)

// update rewrites the golden files: go test ./internal/report -update.
var update = flag.Bool("update", false, "rewrite the golden files")

// madeUp reads the test data, whose figures are invented.
func madeUp(t testing.TB) result.File {
	t.Helper()
	f, err := result.Read("testdata/made-up.json")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tableOf prints f as text.
func tableOf(t testing.TB, f result.File, o TableOptions) string {
	t.Helper()
	var b strings.Builder
	if err := Table(&b, f, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// htmlOf makes f's page.
func htmlOf(t testing.TB, f result.File) string {
	t.Helper()
	var b strings.Builder
	if err := HTML(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// truncated is f after n rounds: figures of fewer rounds, no intervals under
// six, comparisons likewise.
func truncated(f result.File, n int) result.File {
	f.Rows = append([]result.Row(nil), f.Rows...)
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Samples = row.Samples[:min(n, len(row.Samples))]
		if n < minRounds {
			row.CI95 = nil
		}
	}
	f.Run.Comparisons = append([]result.Comparison(nil), f.Run.Comparisons...)
	for i := range f.Run.Comparisons {
		c := &f.Run.Comparisons[i]
		c.Ratios = c.Ratios[:min(n, len(c.Ratios))]
		if n < minRounds {
			c.CI95 = nil
		}
	}
	return f
}

// withLatency is f with every row's latency changed.
func withLatency(f result.File, change func(*result.Latency)) result.File {
	f.Rows = append([]result.Row(nil), f.Rows...)
	for i := range f.Rows {
		if l := f.Rows[i].LatencyUS; l != nil {
			changed := *l
			change(&changed)
			f.Rows[i].LatencyUS = &changed
		}
	}
	return f
}

// golden compares got to a file below testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", path, got)
	}
}
