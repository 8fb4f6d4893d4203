// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"mustang/internal/report"
)

const (
	// answerLines and answerWidth are the room of an answer on a terminal, with the lines on the run and on its files.
	answerLines, answerWidth = 40, 100
	// mostSentences and mostFailed are the most verdicts and reasons of failures that an answer shows.
	mostSentences, mostFailed = 11, 3
)

// Answer prints the answers of r to w, one block for each suite. A block fits on a screen, unless it is to be wide.
// The last line names the files. It returns the first error of w.
func Answer(w io.Writer, r *report.Report, files string, o Options) error {
	lines, width := math.MaxInt32, o.Width
	if o.Width <= 0 || o.Width > answerWidth {
		o.Width = answerWidth
	}
	if !o.Wide {
		lines, width = answerLines, o.Width
	}
	p := &printer{w: w, options: o, several: len(r.Suites) > 1, tableWidth: width}
	top := wrap(clip(r.Headline, 2*o.Width-4), o.Width, 0)
	for _, warning := range r.Warnings {
		top = append(top, p.painted(ansiAmber, clip(warning, 2*o.Width-4))...)
	}
	p.lines(top)
	if len(r.Suites) == 0 {
		p.line("This file holds no rows.")
	}
	for i, suite := range r.Suites {
		room := lines - 1
		if i == 0 {
			room -= len(top)
		}
		p.answer(suite, r.Disturbances, room)
	}
	if files != "" {
		p.line(files)
	}
	if p.err != nil {
		return fmt.Errorf("print answer: %w", p.err)
	}
	return nil
}

func (p *printer) painted(code, text string) (out []string) {
	for _, line := range wrap(text, p.options.Width, 0) {
		out = append(out, p.paint(code, line))
	}
	return out
}

// answer prints a suite's verdicts, what disturbed the run, and its tables, in a number of lines; the tables give way.
func (p *printer) answer(s report.Suite, disturbances string, room int) {
	width, b := p.options.Width, s.Brief
	var before, after []string
	if p.several {
		before = append(before, "", p.paint(ansiBold, s.Name))
	}
	if disturbances != "" {
		before = append(before, p.painted(ansiAmber, clip(disturbances, 2*width-10))...)
	}
	for _, sentence := range b.Sentences[:min(len(b.Sentences), mostSentences)] {
		before = append(before, wrap(sentence, width, 0)...)
	}
	if len(b.Sentences) > mostSentences {
		before = append(before, "Other workloads: -o wide.")
	}
	if b.NotMeasured != "" {
		after = append(after, wrap(clip(b.NotMeasured, 2*width-10), width, 0)...)
	}
	most := width
	if len(b.Failed) == 1 {
		most = 2*width - 10
	}
	for i, failed := range b.Failed {
		if i == mostFailed-1 && len(b.Failed) > mostFailed {
			failed = fmt.Sprintf("%d more reasons; -o wide has them all", len(b.Failed)-i)
		}
		if i < mostFailed {
			after = append(after, p.painted(ansiRed, clip("failed: "+failed, most))...)
		}
	}
	p.lines(before)
	room -= len(before) + len(after)
	for i, table := range b.Tables {
		share := room
		if rest := len(b.Tables) - 1 - i; rest > 0 { // half of it, or what the next table leaves
			share = max(room/2, room-len(p.brief(b.Tables[i+1], room)))
		}
		lines := p.brief(table, share)
		p.lines(lines)
		room -= len(lines)
	}
	p.lines(after)
}

// brief returns a table with its notes in a number of lines: as many lines and columns as fit.
func (p *printer) brief(table report.Table, room int) []string {
	total := len(table.Lines)
	if total == 0 {
		return nil
	}
	var notes []string
	if len(table.Notes) > 0 {
		notes = wrap(strings.Join(table.Notes, " "), p.options.Width, 2)
	}
	shown, left := fit(table.Columns, p.tableWidth)
	head, body := layOut(shown)
	if room -= len(notes) + len(head) + min(len(left), 1); total > room {
		shown, left = fit(shorten(table, max(room-1, 1)).Columns, p.tableWidth)
		head, body = layOut(shown)
		left = append([]string{fmt.Sprintf("and %d more of %d", total-len(body), total)}, left...)
	}
	var out []string
	for _, line := range head {
		out = append(out, p.paint(ansiDim, line))
	}
	out = append(out, body...)
	if len(left) > 0 {
		out = append(out, clip("  "+strings.Join(slices.Compact(left), "; ")+": -o wide", p.options.Width))
	}
	return append(out, notes...)
}

// shorten leaves out the lines with the highest ranks; of equal ranks, the last lines.
func shorten(table report.Table, lines int) report.Table {
	var order []int
	for i := range table.Lines {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return table.Lines[a].Rank - table.Lines[b].Rank })
	return table.Keep(slices.Sorted(slices.Values(order[:min(lines, len(order))])))
}
