// SPDX-License-Identifier: Apache-2.0

// Package render prints reports: as text for terminals, as CSV, as Markdown, and in the format of Go's benchmarks, which benchstat reads.
package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Options are the ways to print a report. The zero value prints plain text of any
// width.
type Options struct {
	// Wide adds percentiles, rounds and evidence to each row.
	Wide bool
	// Width is the terminal's width in columns: tables leave out their least
	// important columns until they fit. 0 leaves out none.
	Width int
	// Color marks statuses and warnings with ANSI colors.
	Color bool
}

// Text prints all tables of r to w: for each suite the question, the details of the answer, the rows of each
// workload and the comparisons; then what was skipped or failed. It returns the first error of w.
func Text(w io.Writer, r *report.Report, o Options) error {
	p := &printer{w: w, options: o, several: len(r.Suites) > 1}
	p.paragraph(r.Headline, 0)
	for _, warning := range r.Warnings {
		p.paragraph(p.paint(ansiAmber, warning), 0)
	}
	if r.Disturbances != "" {
		p.paragraph(p.paint(ansiAmber, r.Disturbances), 0)
	}
	if len(r.Suites) == 0 {
		p.line("")
		p.line("This file holds no rows.")
	}
	for _, suite := range r.Suites {
		p.suite(suite)
	}
	p.failures(r.Suites)
	if p.err != nil {
		return fmt.Errorf("print table: %w", p.err)
	}
	return nil
}

// textWidth is the width of sentences when the terminal's is not known.
const textWidth = 100

// ANSI colors.
const (
	ansiBold  = "1"
	ansiDim   = "2"
	ansiRed   = "31"
	ansiAmber = "33"
)

// printer writes the parts of a report and keeps the first error.
type printer struct {
	w       io.Writer
	options Options
	several bool // whether the report has several suites
	err     error
}

// suite prints a suite.
func (p *printer) suite(s report.Suite) {
	title := s.Question
	if p.several && s.Name != s.Question {
		title = s.Name + ": " + s.Question
	}
	p.line("")
	for _, line := range wrap(title, p.width(), 0) {
		p.line(p.paint(ansiBold, line))
	}
	for _, w := range s.Workloads {
		if s.Links { // whose answer Answer prints
			break
		}
		p.line("")
		p.paragraph(w.Name+": "+w.Answer.Headline, 0)
		for _, detail := range w.Answer.Details {
			p.paragraph(detail, 2)
		}
	}
	if line := s.NotMeasured(0); line != "" {
		p.line("")
		p.paragraph(line, 0)
	}
	p.rows(s)
	for _, note := range s.Notes {
		p.paragraph(note, 0)
	}
	p.summary(s)
	for _, w := range s.Workloads {
		if len(w.Paths) == 0 {
			continue
		}
		p.line("")
		p.line("Packet paths, " + inSentence(w.Name))
		for _, path := range w.Paths {
			p.paragraph(path.String(w.CPUUnit), 2)
		}
	}
	p.costs(s)
	p.comparisons(s)
}

// rows prints the rows of all workloads.
func (p *printer) rows(s report.Suite) {
	for _, w := range s.Workloads {
		p.heading(w.Heading)
		p.table(w.Rows)
	}
}

// costs prints the parts of the CPU time.
func (p *printer) costs(s report.Suite) {
	for _, w := range s.Workloads {
		if w.Costs != nil && p.options.Wide {
			p.heading(w.Costs.Title)
			p.table(*w.Costs)
		}
	}
}

// summary prints the figures.
func (p *printer) summary(s report.Suite) {
	for _, w := range s.Workloads {
		if w.Grid != nil {
			p.heading(w.Grid.Title)
			p.table(*w.Grid)
		}
	}
}

// comparisons prints the ratios.
func (p *printer) comparisons(s report.Suite) {
	for _, w := range s.Workloads {
		if w.Comparisons != nil {
			p.heading("Comparisons, " + inSentence(w.Name) + " (ratio within each round)")
			p.table(*w.Comparisons)
		}
	}
	p.unseen(s)
}

// unseen prints how well two measurements of one path agree; for links the answer has it.
func (p *printer) unseen(s report.Suite) {
	if !s.Links && s.Unseen != "" {
		p.line("")
		p.paragraph(s.Unseen, 0)
	}
}

// failures prints the rows without a figure.
func (p *printer) failures(suites []report.Suite) {
	started := false
	for _, s := range suites {
		for _, f := range s.Failures {
			if !started {
				p.heading("Skipped and failed")
				started = true
			}
			rows := f.Rows
			if p.several {
				rows = s.Name + ": " + rows
			}
			p.paragraph(f.Status+" "+rows+": "+f.Reason, 2)
		}
	}
}

// table prints a table with its notes, in the colors of its lines' statuses.
func (p *printer) table(t report.Table) {
	var columns []column
	for _, c := range t.Columns {
		if !c.Wide || p.options.Wide {
			columns = append(columns, newColumn(c))
		}
	}
	shown := fit(columns, p.options.Width)
	head, body := layOut(shown)
	for _, line := range head {
		p.line(p.paint(ansiDim, line))
	}
	for i, line := range body {
		code := ""
		switch t.Lines[i].Status {
		case result.StatusFailed:
			code = ansiRed
		case result.StatusSkipped:
			code = ansiDim
		}
		p.line(p.paint(code, line))
	}
	var left []string
	for _, c := range columns {
		if !slices.ContainsFunc(shown, func(s column) bool { return s.title == c.title }) {
			left = append(left, c.title)
		}
	}
	if len(left) > 0 {
		p.paragraph("Columns left out for lack of width: "+strings.TrimSuffix(strings.Join(left, ", "), ".")+".", 2)
	}
	for _, note := range t.Notes {
		p.paragraph(note, 2)
	}
}

// heading writes a line that starts a part.
func (p *printer) heading(text string) {
	p.line("")
	p.line(p.paint(ansiBold, text))
}

// width is the width of sentences.
func (p *printer) width() int {
	if p.options.Width > 0 {
		return p.options.Width
	}
	return textWidth
}

// paragraph writes text, wrapped.
func (p *printer) paragraph(text string, indent int) {
	for _, line := range wrap(text, p.width(), indent) {
		p.line(line)
	}
}

// line writes one line, with plain spaces only.
func (p *printer) line(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, strings.ReplaceAll(s, "\u00a0", " ")+"\n")
	}
}

// paint colors text if colors are wanted.
func (p *printer) paint(code, text string) string {
	if !p.options.Color || text == "" || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// inSentence writes a title in the middle of a sentence, leaving acronyms.
func inSentence(title string) string {
	if len(title) > 1 && title[1] >= 'A' && title[1] <= 'Z' {
		return title
	}
	return strings.ToLower(title[:min(1, len(title))]) + title[min(1, len(title)):]
}
