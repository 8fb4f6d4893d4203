// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"mustang/internal/report"
)

const gap = 2 // the number of spaces before each column

type column struct {
	right       bool
	width       int
	head, cells []string
}

func newColumn(c report.Column) column {
	out, room := column{right: c.Right}, ""
	if c.Marked {
		room = " "
	}
	for _, text := range c.Head {
		out.head = append(out.head, text+room)
	}
	for _, cell := range c.Cells {
		out.cells = append(out.cells, cell.Text+cmp.Or(cell.Mark, room))
	}
	for _, text := range slices.Concat(out.head, out.cells) {
		out.width = max(out.width, utf8.RuneCountInString(text))
	}
	return out
}

// fit returns the columns of the lowest ranks that fit, and the names of the others; a width of 0 takes all.
func fit(all []report.Column, width int) (shown []column, left []string) {
	order, keep, columns := make([]int, len(all)), make([]bool, len(all)), make([]column, len(all))
	for i, c := range all {
		order[i], columns[i] = i, newColumn(c)
	}
	slices.SortStableFunc(order, func(a, b int) int { return all[a].Rank - all[b].Rank })
	total := 0
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

func layOut(columns []column) (head, body []string) {
	block := func(texts func(column) []string) (out []string) {
		for _, c := range columns {
			out = append(out, make([]string, max(0, len(texts(c))-len(out)))...)
		}
		for _, c := range columns {
			width := c.width
			if !c.right {
				width = -width // pads on the right
			}
			for at := range out {
				text := ""
				if all := texts(c); at < len(all) {
					text = all[at]
				}
				out[at] += fmt.Sprintf("%*s%*s", gap, "", width, text)
			}
		}
		for at, line := range out {
			out[at] = strings.TrimRight(line, " ")
		}
		return out
	}
	return block(func(c column) []string { return c.head }), block(func(c column) []string { return c.cells })
}

// wrap breaks text between words into lines of at most width, the first indented and the others indented by two more.
func wrap(text string, width, indent int) (out []string) {
	line, length := "", 0
	for i, word := range strings.Split(text, " ") {
		n := utf8.RuneCountInString(word)
		before := " "
		if i == 0 || length+1+n > width && length > 0 {
			if i > 0 {
				out = append(out, line)
			}
			before = strings.Repeat(" ", indent+min(len(out), 1)*2)
			line, length = "", 0
		}
		line += before + word
		length += len(before) + n
	}
	return append(out, line)
}

func clip(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	text = string(runes[:max(most-2, 0)])
	if i := strings.LastIndex(text, " "); i > len(text)/2 {
		text = text[:i]
	}
	return text + " …"
}
