// SPDX-License-Identifier: Apache-2.0

package render

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
	answerLines = 40
	answerWidth = 100
)

// The most sentences and reasons of failures that an answer shows.
const (
	mostSentences = 8
	mostFailed    = 3
)

// Answer prints the answers of r to w, one block for each suite: a block fits on a screen.
// The last line tells where the files are. It returns the first error of w.
func Answer(w io.Writer, r *report.Report, files string, o Options) error {
	if o.Width <= 0 || o.Width > answerWidth {
		o.Width = answerWidth
	}
	p := &printer{w: w, options: o, several: len(r.Suites) > 1}
	top := wrap(clip(r.Headline, 2*o.Width-4), o.Width, 0)
	for _, warning := range r.Warnings {
		top = append(top, p.painted(ansiAmber, clip(warning, 2*o.Width-4))...)
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

// painted wraps text and paints its lines.
func (p *printer) painted(code, text string) []string {
	var out []string
	for _, line := range wrap(text, p.options.Width, 0) {
		out = append(out, p.paint(code, line))
	}
	return out
}

// answer prints a suite's sentences, what disturbed the run, and its table, in a number of lines; the table gives way.
func (p *printer) answer(s report.Suite, disturbances string, room int) {
	width, b := p.options.Width, s.Brief
	var before, after []string
	if p.several {
		before = append(before, "", p.paint(ansiBold, s.Name))
	}
	if disturbances != "" {
		before = append(before, p.painted(ansiAmber, clip(disturbances, 2*width-10))...)
	}
	for i, sentence := range b.Sentences {
		if !s.Links {
			if i == mostSentences {
				before = append(before, "Other workloads: -o wide.")
				break
			}
			sentence = clip(sentence, 2*width-10)
		}
		before = append(before, wrap(sentence, width, 0)...)
	}
	if !s.Links && s.Unseen != "" {
		before = append(before, wrap(s.Unseen, width, 0)...)
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
		after = append(after, p.painted(ansiRed, clip("failed: "+failed, most))...)
	}
	for _, line := range before {
		p.line(line)
	}
	shown := p.briefTable(b.Table, room-len(before)-len(after)-len(p.legend(b.Table)))
	for _, line := range append(p.legend(shown), after...) {
		p.line(line)
	}
}

// legend is a table's legend, wrapped: its notes, and what its signs say.
func (p *printer) legend(table report.Table) []string {
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
	if len(parts) == 0 || len(table.Lines) == 0 {
		return nil
	}
	return wrap(strings.Join(parts, " "), p.options.Width, 2)
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
