// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/report"
)

// WriteComparison prints a comparison of runs to w: the answer, the warnings, a table for each suite and workload, and
// the differences in machine and settings. Last come the rows that are not in all runs. Tables are as wide as needed.
func WriteComparison(w io.Writer, c *report.Comparison, o Options) error {
	p, text := &printer{w: w, options: o}, c.Text(o.Wide)
	for _, sentence := range slices.Concat(text.Answer, text.Warnings) {
		p.paragraph(sentence, 0)
	}
	for _, t := range text.Tables {
		p.heading(t.Title)
		p.columns(&t, 0)
	}
	if len(text.Differs.Lines) > 0 {
		p.heading("What differs in machine and settings")
		p.columns(&text.Differs, 0)
	}
	for _, sentences := range [][]string{text.Absent, text.Notes} {
		if len(sentences) > 0 {
			p.line("")
		}
		for _, s := range sentences {
			p.paragraph(s, 0)
		}
	}
	if p.err != nil {
		return fmt.Errorf("print comparison: %w", p.err)
	}
	return nil
}

// ComparisonCSV writes a line for each row and each run that is compared with the old one.
func ComparisonCSV(w io.Writer, c *report.Comparison) error {
	lines := [][]string{strings.Split("suite,row,workload,flows,unit,old_run,new_run,old,old_ci95_low,old_ci95_high,new,"+
		"new_ci95_low,new_ci95_high,ratio,ratio_ci95_low,ratio_ci95_high,p,test,over,old_units,new_units,found,worse",
		",")}
	for _, t := range c.Tables {
		for _, l := range t.Lines {
			for i, d := range l.Deltas {
				if d == nil {
					continue
				}
				old, now := l.Figures[0], l.Figures[i+1]
				lines = append(lines, slices.Concat(
					[]string{t.Suite, l.ID, t.Workload, strconv.Itoa(t.Flows), t.Unit, c.Names[0], c.Names[i+1]},
					withInterval(old.Median, old.CI95), withInterval(now.Median, now.CI95), withInterval(d.Ratio, d.CI95),
					[]string{plainNumber(d.P), d.Test, d.Over, strconv.Itoa(d.Old), strconv.Itoa(d.New),
						strconv.FormatBool(d.Found), strconv.FormatBool(d.Worse)}))
			}
		}
	}
	return WriteCSV(w, lines)
}

func withInterval(v float64, ci *[2]float64) []string {
	if ci == nil {
		return []string{plainNumber(v), "", ""}
	}
	return []string{plainNumber(v), plainNumber(ci[0]), plainNumber(ci[1])}
}

// ComparisonMarkdown writes the warnings, what differs, the tables, and the rows that are not in all runs.
func ComparisonMarkdown(w io.Writer, c *report.Comparison) error {
	var b strings.Builder
	table := func(title string, columns []report.Column) {
		lines := make([][]string, len(columns[0].Cells)+1)
		for _, column := range columns {
			lines[0] = append(lines[0], escape(column.Head[0]))
			for i, cell := range column.Cells {
				lines[i+1] = append(lines[i+1], escape(cell.Text))
			}
		}
		markdownTable(&b, escape(title), lines)
	}
	text := c.Text(false)
	for _, warning := range text.Warnings {
		b.WriteString(escape(warning) + "\n\n")
	}
	if len(c.Differs) > 0 {
		table("What differs", text.Differs.Columns)
	}
	for _, t := range text.Tables {
		table(t.Title, t.Columns)
	}
	b.WriteString(escape(strings.Join(append(text.Absent, text.Notes...), " ")) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}
