// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"unicode/utf8"

	"mustang/internal/report"
)

// Spaces before a table and between its columns.
const (
	indent = 2
	gap    = 2
)

// column is a column of a table as text.
type column struct {
	title string
	right bool
	rank  int
	join  bool // to the column before
	gap   int  // before it
	width int
	over  string
	head  []string
	cells []string
}

// newColumns turns the columns of a table's first lines into strings.
func newColumns(columns []report.Column, lines int) []column {
	var out []column
	for _, c := range columns {
		c.Cells = c.Cells[:min(lines, len(c.Cells))]
		out = append(out, newColumn(c))
	}
	for i := range out {
		width := out[i].width
		for _, c := range out[i+1:] {
			if !c.join {
				break
			}
			width += c.gap + c.width
		}
		out[i].width += max(utf8.RuneCountInString(out[i].over)-width, 0)
	}
	return out
}

// newColumn turns a column into strings. A column of marked cells gets a place for
// the mark in each line.
func newColumn(c report.Column) column {
	out := column{title: c.Title(), over: c.Over, right: c.Right, rank: c.Rank, join: c.Joined, gap: gap}
	if c.Tight {
		out.gap = 1
	}
	for _, text := range c.Head {
		if c.Marked {
			text += " "
		}
		out.head = append(out.head, text)
	}
	for _, cell := range c.Cells {
		text := cell.Text + cell.Mark
		if c.Marked && cell.Mark == "" {
			text += " "
		}
		out.cells = append(out.cells, text)
	}
	for _, text := range slices.Concat(out.head, out.cells) {
		out.width = max(out.width, utf8.RuneCountInString(text))
	}
	return out
}

// fit returns the columns that go into a terminal's width, the lowest ranks first; a
// width of 0 takes all.
func fit(columns []column, width int) []column {
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
		need := columns[i].width + columns[i].gap
		if columns[i].rank == 0 || total+need <= width && (!columns[i].join || keep[i-1]) {
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

// layOut returns the lines of the headings and one line per row.
func layOut(columns []column) (head, body []string) {
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
				b.WriteString(strings.Repeat(" ", c.gap))
			}
			text := cell(c)
			pad := ""
			if c.right || i < len(columns)-1 { // not behind the last column
				pad = strings.Repeat(" ", max(c.width-utf8.RuneCountInString(text), 0))
			}
			if c.right {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	if slices.ContainsFunc(columns, func(c column) bool { return c.over != "" }) {
		head = append(head, overLine(columns))
	}
	for i := range depth {
		head = append(head, row(func(c column) string { return at(c.head, i) }))
	}
	for i := range rows {
		body = append(body, row(func(c column) string { return at(c.cells, i) }))
	}
	return head, body
}

// overLine returns the headings above several columns, each from the left of its first one.
func overLine(columns []column) string {
	line, left := "", indent
	for i, c := range columns {
		if i > 0 {
			left += c.gap
		}
		if c.over != "" {
			line += strings.Repeat(" ", max(left-utf8.RuneCountInString(line), 0)) + c.over
		}
		left += c.width
	}
	return line
}

// at returns the i-th string, empty past the end.
func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

// wrap breaks text between words into lines of at most width, the first
// indented and the others indented by two more.
func wrap(text string, width, indent int) []string {
	var out []string
	var line strings.Builder
	length := 0
	for _, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		if length > 0 && length+1+n > width {
			out = append(out, line.String())
			line.Reset()
			length = 0
		}
		before := " "
		if length == 0 {
			before = strings.Repeat(" ", indent+min(len(out), 1)*2)
		}
		line.WriteString(before + word)
		length += len(before) + n
	}
	return append(out, line.String())
}
