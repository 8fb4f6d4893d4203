// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// table is a table of two lines with a column of each kind.
func table() report.Table {
	cells := func(texts ...string) []report.Cell {
		var out []report.Cell
		for _, s := range texts {
			text, mark, _ := strings.Cut(s, "|")
			out = append(out, report.Cell{Text: text, Mark: mark})
		}
		return out
	}
	return report.Table{
		Columns: []report.Column{
			{Head: []string{"", "way"}, Cells: cells("a", "long name")},
			{Head: []string{"% of", "a"}, Right: true, Marked: true, Rank: 2, Cells: cells("100.0", "9.5|~")},
			{Head: []string{"p90", "µs"}, Right: true, Rank: 8, Cells: cells("1", "2")},
			{Head: []string{"status"}, Rank: 1, Cells: cells("ok", "skipped")},
		},
		Lines: []report.Line{{Status: result.StatusOK}, {Status: result.StatusSkipped}},
		Notes: []string{"a note"},
	}
}

// TestTable checks alignment, marks, widths and colors of a table.
func TestTable(t *testing.T) {
	for name, tc := range map[string]struct {
		options Options
		want    []string
	}{
		"narrow": {Options{Width: 20}, []string{
			"             status", "  way",
			"  a          ok",
			"  long name  skipped",
			"  Columns left out", "    for lack of", "    width: % of a,", "    p90 µs.",
			"  a note",
		}},
		"usual": {Options{}, []string{
			"              % of   p90  status", "  way            a    µs",
			"  a          100.0     1  ok",
			"  long name    9.5~    2  skipped",
			"  a note",
		}},
		"in color": {Options{Color: true}, []string{
			"\x1b[2m              % of   p90  status\x1b[0m", "\x1b[2m  way            a    µs\x1b[0m",
			"  a          100.0     1  ok",
			"\x1b[2m  long name    9.5~    2  skipped\x1b[0m",
			"  a note",
		}},
	} {
		var b strings.Builder
		of := table()
		(&printer{w: &b, options: tc.options}).table("", &of)
		diff := cmp.Diff("\n\n"+strings.Join(tc.want, "\n")+"\n", b.String())
		testkit.Check(t, diff == "", "%s (-want +got):\n%s", name, diff)
	}
}

// TestWrap checks that lines break between words only and keep to the width.
func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		text   string
		width  int
		indent int
		want   []string
	}{
		{"one two three", 9, 0, []string{"one two", "  three"}},
		{"one two three", 9, 2, []string{"  one two", "    three"}},
		{"unbreakable", 4, 0, []string{"unbreakable"}},
		{"a unbreakable b", 4, 0, []string{"a", "  unbreakable", "  b"}},
		{"µµ\u00a0µµ µµ", 8, 0, []string{"µµ\u00a0µµ µµ"}},
		{"", 8, 0, []string{""}},
	} {
		diff := cmp.Diff(tc.want, wrap(tc.text, tc.width, tc.indent))
		testkit.Check(t, diff == "", "%q in %d (-want +got):\n%s", tc.text, tc.width, diff)
	}
}
