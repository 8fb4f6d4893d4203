// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"io"

	"mustang/internal/report"
)

// The room of a suite's answer on a terminal, with the two lines on the run and the one on
// its files.
const (
	answerLines = 25
	answerWidth = 100
)

// The most workloads and reasons of failures that an answer shows.
const (
	mostWinners = 8
	mostFailed  = 3
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
		if len(s.Brief.Winners) <= 3 {
			most = 2*width - 10
		}
		before = append(before, wrap(clip(winner, most), width, 0)...)
	}
	b := s.Brief
	table := choose(b.Tables, width)
	for _, note := range table.Notes {
		after = append(after, wrap(note, width, 2)...)
	}
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
		after = append(after, p.paint(ansiRed, clip("failed: "+failed, width)))
	}
	for _, line := range before {
		p.line(line)
	}
	p.briefTable(table, room-len(before)-len(after))
	for _, line := range after {
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

// briefTable prints a table in a number of lines; it is left out if it has none. The lines
// that are shown decide how many columns fit.
func (p *printer) briefTable(table report.Table, room int) {
	total := len(table.Lines)
	if total == 0 {
		return
	}
	head, body := layOut(p.columns(table, total))
	if room -= len(head); total > room {
		head, body = layOut(p.columns(table, max(room-1, 1)))
	}
	for _, line := range head {
		p.line(p.paint(ansiDim, line))
	}
	for _, line := range body {
		p.line(line)
	}
	if more := total - len(body); more > 0 {
		p.line(fmt.Sprintf("  and %d more: -o wide", more))
	}
}

// columns returns the columns of the first lines of a table that fit.
func (p *printer) columns(table report.Table, lines int) []column {
	return fit(newColumns(table.Columns, lines), p.options.Width)
}

// clip cuts text to a number of characters.
func clip(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:max(most-1, 0)]) + "…"
	}
	return text
}
