// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"io"

	"mustang/internal/report"
	"mustang/internal/result/compare"
)

// WriteComparison prints a comparison of runs to w: the warnings, what differs in machine and settings, a
// table for each suite and workload, and the rows that are not in all runs. Tables are as
// wide as they have to be.
func WriteComparison(w io.Writer, c *compare.Comparison, o Options) error {
	p := &printer{w: w, options: o}
	for _, warning := range comparisonWarnings(c) {
		p.paragraph(warning, 0)
	}
	if head, lines := differing(c); len(lines) == 0 {
		p.line("Machine, versions and settings are the same.")
	} else {
		for _, line := range lines {
			for i, value := range line {
				line[i] = cmp.Or(value, report.None)
			}
		}
		p.line(p.paint(ansiAmber, "What differs in machine and settings"))
		p.cells(head, lines, false)
	}
	for _, t := range c.Tables {
		head, lines := comparisonCells(c, t, o.Wide)
		p.heading(comparisonTitle(t))
		p.cells(head, lines, true)
	}
	for _, sentences := range [][]string{absentRows(c), comparisonFooter(c)} {
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

// cells prints a table of which all columns but the first are aligned on the left or right.
func (p *printer) cells(head []string, lines [][]string, right bool) {
	var columns []column
	for i, name := range head {
		c := report.Column{Head: []string{Plain(name)}, Right: right && i > 0}
		for _, line := range lines {
			c.Cells = append(c.Cells, report.Cell{Text: Plain(line[i])})
		}
		columns = append(columns, newColumn(c))
	}
	heads, body := layOut(columns)
	for _, line := range heads {
		p.line(p.paint(ansiDim, line))
	}
	for _, line := range body {
		p.line(line)
	}
}
