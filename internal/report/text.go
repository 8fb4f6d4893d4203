// SPDX-License-Identifier: Apache-2.0

package report

import (
	"io"
	"strings"
)

// textWidth is the width of sentences when the terminal's is not known.
const textWidth = 100

// ANSI colours of the table.
const (
	ansiBold  = "1"
	ansiDim   = "2"
	ansiRed   = "31"
	ansiAmber = "33"
)

// printer writes the parts of a table and keeps the first error.
type printer struct {
	w       io.Writer
	options TableOptions
	view    *view
	err     error
}

// line writes one line, with plain spaces only.
func (p *printer) line(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, strings.ReplaceAll(s, "\u00a0", " ")+"\n")
	}
}

// paragraph writes text, wrapped to the terminal's width.
func (p *printer) paragraph(text string, indent int) {
	width := textWidth
	if p.options.Width > 0 {
		width = p.options.Width
	}
	for _, line := range wrap(text, width, indent) {
		p.line(line)
	}
}

// heading writes a line that starts a part.
func (p *printer) heading(text string) {
	p.line("")
	p.line(p.paint(ansiBold, text))
}

// subheading writes a line that starts a smaller part.
func (p *printer) subheading(text string) {
	p.line("")
	p.line(text)
}

// grid writes columns as a table; paint may colour a row's line.
func (p *printer) grid(columns []column, paint func(row int, line string) string) {
	shown := fit(columns, p.options.Width, 2)
	head, body := lines(shown, 2)
	for _, line := range head {
		p.line(p.paint(ansiDim, line))
	}
	for i, line := range body {
		if paint != nil {
			line = paint(i, line)
		}
		p.line(line)
	}
	if len(shown) < len(columns) {
		var names []string
		for _, c := range columns {
			if !contains(shown, c) {
				names = append(names, c.title())
			}
		}
		p.paragraph("Left out for want of width: "+strings.TrimSuffix(strings.Join(names, ", "), ".")+".", 2)
	}
}

// contains says whether a column of that heading is among columns.
func contains(columns []column, c column) bool {
	for _, other := range columns {
		if other.title() == c.title() {
			return true
		}
	}
	return false
}

// paint colours text if colours are wanted.
func (p *printer) paint(code, text string) string {
	if !p.options.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
