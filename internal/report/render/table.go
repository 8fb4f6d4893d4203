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
	right bool
	width int
	head  []string
	cells []string
}

// newColumn turns a column into strings. A column of marked cells gets a place for
// the mark in each line.
func newColumn(c report.Column) column {
	out := column{right: c.Right}
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

// fit returns the columns that go into a terminal's width, the lowest ranks first, and the names of the others; a
// width of 0 takes all.
func fit(all []report.Column, width int) (shown []column, left []string) {
	order, keep, columns := make([]int, len(all)), make([]bool, len(all)), make([]column, len(all))
	for i, c := range all {
		order[i], columns[i] = i, newColumn(c)
	}
	slices.SortStableFunc(order, func(a, b int) int { return all[a].Rank - all[b].Rank })
	total := indent - gap
	for _, i := range order {
		need := columns[i].width + gap
		if all[i].Rank == 0 || width <= 0 || total+need <= width && (!all[i].Joined || keep[i-1]) {
			keep[i] = true
			total += need
		}
	}
	for i, c := range columns {
		if keep[i] {
			shown = append(shown, c)
		} else if !all[i].Joined || keep[i-1] {
			left = append(left, all[i].Title())
		}
	}
	return shown, left
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
				b.WriteString(strings.Repeat(" ", gap))
			}
			text := cell(c)
			pad := strings.Repeat(" ", max(c.width-utf8.RuneCountInString(text), 0))
			if c.right {
				text, pad = pad, text
			}
			b.WriteString(text + pad)
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
