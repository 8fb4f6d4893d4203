// SPDX-License-Identifier: Apache-2.0

// Package render prints reports: as text for terminals, as CSV, as Markdown, in the format that benchstat reads.
package render

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Options are the ways to print a report. The zero value prints plain text of any width.
type Options struct {
	Wide bool // adds the tests to comparisons of runs, and all lines and columns to answers
	// Width is the terminal's width: tables leave out their least important columns until they fit. 0 leaves out none.
	Width int
	Color bool // marks statuses and warnings with ANSI colors
}

// Text prints all tables of r to w. Each suite has its question, the rows of each workload, what their packets pass,
// the parts of the CPU time and the comparisons. Skipped and failed rows follow. Text returns the first error of w.
func Text(w io.Writer, r *report.Report, o Options) error {
	p := &printer{w: w, options: o, several: len(r.Suites) > 1}
	p.paragraph(r.Headline, 0)
	for _, warning := range append(r.Warnings[:len(r.Warnings):len(r.Warnings)], r.Disturbances) {
		if warning != "" {
			p.paragraph(p.paint(ansiAmber, warning), 0)
		}
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

// ANSI colors.
const (
	ansiBold  = "1"
	ansiDim   = "2"
	ansiRed   = "31"
	ansiAmber = "33"
)

// printer writes the parts of a report and keeps the first error.
type printer struct {
	w          io.Writer
	options    Options
	several    bool // whether the report has several suites
	err        error
	tableWidth int
}

func (p *printer) suite(s report.Suite) {
	title := s.Question
	if p.several && s.Name != s.Question {
		title = s.Name + ": " + s.Question
	}
	p.line("")
	for _, line := range wrap(title, p.width(), 0) {
		p.line(p.paint(ansiBold, line))
	}
	if line := s.Brief.NotMeasured; line != "" {
		p.line("")
		p.paragraph(line, 0)
	}
	for _, w := range s.Workloads {
		p.table(w.Heading, &w.Rows)
	}
	for _, note := range s.Notes {
		p.paragraph(note, 0)
	}
	for _, w := range s.Workloads {
		p.table("", w.Grid)
	}
	for _, w := range s.Workloads {
		p.list("Packet paths, "+report.LowerFirst(w.Name), w.Paths)
	}
	for _, w := range s.Workloads {
		p.table("", w.Costs)
	}
	for _, w := range s.Workloads {
		p.table("Comparisons, "+report.LowerFirst(w.Name)+" (ratio within each round)", w.Comparisons)
	}
}

// list prints a table of long cells as a paragraph for each line; nothing if it is nil.
func (p *printer) list(heading string, t *report.Table) {
	if t == nil {
		return
	}
	p.heading(heading)
	for i := range t.Lines {
		text := t.Columns[0].Cells[i].Text
		for j, c := range t.Columns[1:] {
			text += []string{": ", "; "}[min(j, 1)] + c.Title() + " " + strings.ReplaceAll(c.Cells[i].Text, "\n", ", ")
		}
		p.paragraph(text, 2)
	}
}

func (p *printer) failures(suites []report.Suite) {
	started := false
	for _, s := range suites {
		for _, f := range s.Failures {
			if !started {
				p.heading("Skipped and failed")
				started = true
			}
			if p.several {
				f.Rows = s.Name + ": " + f.Rows
			}
			p.paragraph(f.Status+" "+f.Rows+": "+f.Reason, 2)
		}
	}
}

// table prints a table with its notes under a heading, by default its title; nothing if it is nil.
func (p *printer) table(heading string, t *report.Table) {
	if t == nil {
		return
	}
	p.heading(cmp.Or(heading, t.Title))
	if left := p.columns(t, p.options.Width); len(left) > 0 {
		p.paragraph("Columns left out for lack of width: "+strings.TrimSuffix(strings.Join(left, ", "), ".")+".", 2)
	}
	for _, note := range t.Notes {
		p.paragraph(note, 2)
	}
}

// columns prints the columns that fit, all of them if the width is 0. It returns the names of the others.
func (p *printer) columns(t *report.Table, width int) (left []string) {
	shown, left := fit(t.Columns, width)
	head, body := layOut(shown)
	for _, line := range head {
		p.line(p.paint(ansiDim, line))
	}
	for i, line := range body {
		code := map[string]string{result.StatusFailed: ansiRed, result.StatusSkipped: ansiDim}[t.Lines[i].Status]
		p.line(p.paint(code, line))
	}
	return left
}

func (p *printer) heading(text string) {
	p.line("")
	p.line(p.paint(ansiBold, text))
}

func (p *printer) width() int                        { return cmp.Or(p.options.Width, 100) }
func (p *printer) paragraph(text string, indent int) { p.lines(wrap(text, p.width(), indent)) }

func (p *printer) lines(lines []string) {
	for _, line := range lines {
		p.line(line)
	}
}

func (p *printer) line(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, strings.ReplaceAll(s, "\u00a0", " ")+"\n")
	}
}

func (p *printer) paint(code, text string) string {
	if !p.options.Color || text == "" || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
