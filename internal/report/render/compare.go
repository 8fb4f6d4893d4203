// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"

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
	if len(c.Differs) == 0 {
		p.line("Machine, versions and settings are the same.")
	} else {
		var lines [][]string
		for _, d := range c.Differs {
			line := []string{d.Name}
			for _, value := range d.Values {
				line = append(line, orNone(value))
			}
			lines = append(lines, line)
		}
		p.line(p.paint(ansiAmber, "What differs in machine and settings"))
		p.cells(append([]string{""}, c.Names...), lines, false)
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
	columns := make([]column, len(head))
	for i := range columns {
		c := column{right: right && i > 0, head: []string{Plain(head[i])}}
		for _, line := range lines {
			c.cells = append(c.cells, Plain(line[i]))
		}
		for _, text := range append([]string{c.head[0]}, c.cells...) {
			c.width = max(c.width, len([]rune(text)))
		}
		columns[i] = c
	}
	heads, body := layOut(columns)
	for _, line := range heads {
		p.line(p.paint(ansiDim, line))
	}
	for _, line := range body {
		p.line(line)
	}
}

func orNone(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
