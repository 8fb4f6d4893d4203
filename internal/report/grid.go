// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// column is one column of a text table.
type column struct {
	head  []string // heading, one string per line
	right bool     // figures are aligned to the right
	rank  int      // 0 always shown; the highest is left out first when space is short
	cells []string
}

// width is that of the widest cell or heading.
func (c column) width() int {
	w := 0
	for _, s := range slices.Concat(c.head, c.cells) {
		w = max(w, utf8.RuneCountInString(s))
	}
	return w
}

// title is the heading on one line.
func (c column) title() string {
	var parts []string
	for _, part := range c.head {
		parts = append(parts, strings.TrimSpace(part))
	}
	return strings.ReplaceAll(strings.Join(parts, " "), "/ ", "/")
}

// gap is the number of spaces between columns.
const gap = 2

// fit returns the columns that go into width after the indent, the lowest ranks
// first; a width of 0 takes all.
func fit(columns []column, width, indent int) []column {
	if width <= 0 {
		return columns
	}
	order := make([]int, len(columns))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return columns[a].rank - columns[b].rank })
	keep := make([]bool, len(columns))
	total := indent - gap
	for _, i := range order {
		need := columns[i].width() + gap
		if columns[i].rank == 0 || total+need <= width {
			keep[i] = true
			total += need
		}
	}
	var out []column
	for i, c := range columns {
		if keep[i] {
			out = append(out, c)
		}
	}
	return out
}

// lines lays the columns out: the heading's lines, then one per row.
func lines(columns []column, indent int) (head, body []string) {
	depth, rows := 0, 0
	for _, c := range columns {
		depth = max(depth, len(c.head))
		rows = max(rows, len(c.cells))
	}
	row := func(cell func(column) string) string {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", indent))
		for i, c := range columns {
			if i > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			text := cell(c)
			pad := strings.Repeat(" ", max(c.width()-utf8.RuneCountInString(text), 0))
			if c.right {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	for i := range depth {
		head = append(head, row(func(c column) string { return at(c.head, i) }))
	}
	for i := range rows {
		body = append(body, row(func(c column) string { return at(c.cells, i) }))
	}
	return head, body
}

// at returns the i-th string, or none past the end.
func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

// wrap breaks text between words into lines of at most width, the first
// indented by indent and the others by two more.
func wrap(text string, width, indent int) []string {
	var out []string
	line := ""
	indentation := func() string { return strings.Repeat(" ", indent+min(len(out), 1)*2) }
	for _, word := range strings.Split(text, " ") {
		switch {
		case line == "":
			line = indentation() + word
		case width > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			out = append(out, line)
			line = indentation() + word
		default:
			line += " " + word
		}
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}
