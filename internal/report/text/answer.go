// SPDX-License-Identifier: Apache-2.0

package text

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"mustang/internal/report"
	"mustang/internal/report/format"
)

// The room of a suite's answer on a terminal, with the two lines on the run and the one on
// its files.
const (
	answerLines = 25
	answerWidth = 100
)

// The most workloads and reasons of failures that an answer shows, and the most workloads with two lines each.
const (
	mostWinners = 8
	mostFailed  = 3
	mostWrapped = 6
)

// Answer prints the answers of r to w, one block for each suite: a block fits on a screen.
// The last line tells where the files are. It returns the first error of w.
func Answer(w io.Writer, r *report.Report, files string, o Options) error {
	if o.Width <= 0 || o.Width > answerWidth {
		o.Width = answerWidth
	}
	p := &printer{w: w, options: o, several: len(r.Suites) > 1}
	var top []string
	for i, text := range append([]string{r.Headline}, r.Warnings...) {
		for _, line := range wrap(clip(text, 2*o.Width-4), o.Width, 0) {
			if i > 0 {
				line = p.paint(ansiAmber, line)
			}
			top = append(top, line)
		}
	}
	for _, line := range top {
		p.line(line)
	}
	if len(r.Suites) == 0 {
		p.line("This file holds no rows.")
	}
	for i, suite := range r.Suites {
		room := answerLines - 1
		if i == 0 {
			room -= len(top)
		}
		p.answer(suite, room)
	}
	if files != "" {
		p.line(files)
	}
	if p.err != nil {
		return fmt.Errorf("print answer: %w", p.err)
	}
	return nil
}

// answer prints a suite's answer in a number of lines; the table gives way.
func (p *printer) answer(s report.Suite, room int) {
	width := p.options.Width
	var before, after []string
	if p.several {
		before = append(before, "", p.paint(ansiBold, s.Name))
	}
	for _, line := range wrap(s.Noise, width, 0) {
		if line != "" {
			before = append(before, p.paint(ansiAmber, line))
		}
	}
	for i, winner := range s.Brief.Winners {
		if i == mostWinners {
			before = append(before, "Other workloads: -o wide.")
			break
		}
		most := width
		if len(s.Brief.Winners) <= mostWrapped {
			most = 2*width - 10
		}
		before = append(before, wrap(clip(winner, most), width, 0)...)
	}
	b := s.Brief
	table := choose(b.Tables, width)
	if legend := legendOf(table); legend != "" { // of all lines: the rest needs no more room with a shorter one
		after = append(after, wrap(legend, width, 2)...)
	}
	legendLines := len(after)
	if b.Advice != "" {
		for _, line := range wrap(b.Advice, width, 0) {
			after = append(after, p.paint(ansiBold, line))
		}
	}
	if line := s.NotMeasured(width); line != "" {
		after = append(after, clip(line, width))
	}
	for i, failed := range b.Failed {
		if i == mostFailed {
			after[len(after)-1] = p.paint(ansiRed, clip(fmt.Sprintf("failed: %d more reasons; -o wide has them all", len(b.Failed)-i+1), width))
			break
		}
		most := width
		if len(b.Failed) == 1 {
			most = 2*width - 10
		}
		for _, line := range wrap(clip("failed: "+failed, most), width, 0) {
			after = append(after, p.paint(ansiRed, line))
		}
	}
	for _, line := range before {
		p.line(line)
	}
	if shown := p.briefTable(table, room-len(before)-len(after)); legendOf(shown) != "" {
		for _, line := range wrap(legendOf(shown), width, 2) {
			p.line(line)
		}
	}
	for _, line := range after[legendLines:] {
		p.line(line)
	}
}

// choose returns the first of tables that fits into a width, or the last.
func choose(tables []report.Table, most int) (table report.Table) {
	for _, table = range tables {
		width := indent - gap
		for _, c := range newColumns(table.Columns, len(table.Lines)) {
			width += c.width + c.gap
		}
		if width <= most {
			break
		}
	}
	return table
}

// legendOf is a table's legend: its notes, and what its signs say.
func legendOf(table report.Table) string {
	parts := slices.Clone(table.Notes)
	for _, sign := range table.Signs {
		if slices.ContainsFunc(table.Columns, func(c report.Column) bool {
			return c.Right && slices.ContainsFunc(c.Cells, func(cell report.Cell) bool {
				return cell.Text == sign.Sign || sign.Sign != format.None && strings.Contains(cell.Text+cell.Mark, sign.Sign) // which intervals have, too
			})
		}) {
			parts = append(parts, sign.Text)
		}
	}
	return strings.Join(parts, " ")
}

// briefTable prints a table in a number of lines, and returns what it shows; it is left out if it has none. The lines
// that are shown decide how many columns fit; the others have a name.
func (p *printer) briefTable(table report.Table, room int) (printed report.Table) {
	total := len(table.Lines)
	if total == 0 {
		return table
	}
	shown, left := p.columns(table)
	head, body := layOut(shown)
	if room -= len(head) + min(len(left), 1); total > room {
		table = shorten(table, max(room-1, 1))
		shown, left = p.columns(table)
		head, body = layOut(shown)
	}
	for _, line := range head {
		p.line(p.paint(ansiDim, line))
	}
	for _, line := range body {
		p.line(line)
	}
	if more := total - len(body); more > 0 {
		left = append([]string{fmt.Sprintf("and %d more of %d", more, total)}, left...)
	}
	if len(left) > 0 {
		p.line(clip("  "+strings.Join(left, "; ")+": -o wide", p.options.Width))
	}
	table.Columns = slices.DeleteFunc(slices.Clone(table.Columns), func(c report.Column) bool {
		return !slices.ContainsFunc(shown, func(s column) bool { return s.title == c.Title() && s.over == c.Over })
	})
	return table
}

// shorten leaves out the lines with the highest ranks, and of those the last.
func shorten(table report.Table, lines int) report.Table {
	order := make([]int, len(table.Lines))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return table.Lines[a].Rank - table.Lines[b].Rank })
	keep := slices.Sorted(slices.Values(order[:min(lines, len(order))]))
	table.Columns = slices.Clone(table.Columns)
	for i, c := range table.Columns {
		var cells []report.Cell
		for _, at := range keep {
			cells = append(cells, c.Cells[at])
		}
		table.Columns[i].Cells = cells
	}
	return table
}

// columns returns the columns of a table that fit, and the names of the others.
func (p *printer) columns(table report.Table) (shown []column, left []string) {
	all := newColumns(table.Columns, len(table.Columns[0].Cells))
	shown = fit(all, p.options.Width)
	group, next := "", 0
	for _, c := range all {
		if !c.join {
			group = cmp.Or(c.over, at(c.head, 0))
		}
		switch {
		case next < len(shown) && shown[next].title == c.title && shown[next].over == c.over:
			next++
		case !c.join:
			left = append(left, group)
		case !slices.Contains(left, group):
			left = append(left, group+" "+at(c.head, 0))
		}
	}
	return shown, left
}

// clip cuts text to a number of characters, between words where it has any.
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
