// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Sizes of a drawing.
const (
	rowHeight   = 22
	columnWidth = 210 // of a place
	barsWidth   = 230
	longestBar  = 150
	margin      = 16
)

// Values of [result.Step.Direction].
const (
	Request = "request"
	Reply   = "reply"
)

// Path is a path to draw.
type Path struct {
	// Title is above it, unless it is empty, and Note below that.
	Title, Note string
	// Clock is the unit of the figures.
	Clock string
	Steps []result.Step
}

// Draw writes paths side by side to w as an SVG document. A path has a column for each place, in
// which the packet goes down from step to step, and a bar for the time of each.
func Draw(w io.Writer, paths ...Path) error {
	var b strings.Builder
	width, height, longest := 0, 0, 1.0
	for _, e := range paths {
		for _, s := range e.Steps {
			longest = max(longest, s.Time)
		}
	}
	for _, e := range paths {
		d := drawing{Path: e, scale: longestBar / longest}
		fmt.Fprintf(&b, `<g transform="translate(%d 0)">`+"\n", width)
		d.draw()
		b.WriteString(d.svg.String() + "</g>\n")
		width += d.width()
		height = max(height, d.y+margin)
	}
	_, err := fmt.Fprintf(w,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" `+
			`font-size="12">`+"\n"+
			`<rect class="back" width="100%%" height="100%%" fill="#ffffff"/>`+"\n%s</svg>\n", width, height, width, height,
		b.String())
	return err
}

// drawing is one explanation of a drawing.
type drawing struct {
	Path
	scale float64
	svg   strings.Builder
	y     int
}

// places returns the places in the order in which packets come to them.
func (d *drawing) places() (places []string) {
	for _, s := range d.Steps {
		if s.Place != "" && !slices.Contains(places, s.Place) {
			places = append(places, s.Place)
		}
	}
	return places
}

func (d *drawing) width() int { return margin + len(d.places())*columnWidth + barsWidth }

// text draws a text whose middle is at y.
func (d *drawing) text(x, y int, attributes, text string) {
	fmt.Fprintf(&d.svg, `<text x="%d" y="%d" dominant-baseline="central" fill="#222222" %s>%s</text>`+
		"\n", x, y, attributes, html.EscapeString(text))
}

// draw draws the title, the directions with their steps, and the sums of the classes.
func (d *drawing) draw() {
	d.y = margin + rowHeight/2
	if d.Title != "" {
		d.text(margin, d.y, `font-size="15" font-weight="bold"`, d.Title)
		d.y += rowHeight
	}
	d.text(margin, d.y, "", d.Note)
	for _, direction := range []string{Request, Reply} {
		d.y += 2 * rowHeight
		d.text(margin+len(d.places())*columnWidth, d.y, `font-weight="bold"`, direction)
		for i, place := range d.places() {
			d.text(margin+i*columnWidth, d.y, `font-weight="bold"`, place)
		}
		d.steps(direction)
	}
	d.y += rowHeight
	for _, t := range Totals(d.Steps) {
		d.y += rowHeight
		d.box(margin, t.Class, t.String(), t.String())
		d.text(margin+columnWidth, d.y, "", Figure(t.Sum)+" "+d.Clock)
	}
	d.y += rowHeight / 2
}

// steps draws the steps of a direction. A softirq is in the column of the step before it.
func (d *drawing) steps(direction string) {
	places, column, last := d.places(), 0, -1
	for _, s := range d.Steps {
		if s.Direction != direction {
			continue
		}
		d.y += rowHeight
		if s.Place != "" {
			column = slices.Index(places, s.Place)
		}
		if last >= 0 && last != column { // from the side of the box above to the top of this one
			from := margin + last*columnWidth
			if column > last {
				from += columnWidth - 10
			}
			fmt.Fprintf(&d.svg, `<path d="M%d %d H%d V%d" stroke="#555555" fill="none"/>`+"\n",
				from, d.y-rowHeight, margin+column*columnWidth+columnWidth/2, d.y-rowHeight/2+2)
		}
		last = column
		title := fmt.Sprintf("%s: %s, quartiles %s to %s %s", s, StepFigure(s), Figure(s.Low), Figure(s.High), d.Clock)
		d.box(margin+column*columnWidth, s.Class, s.String(), title)
		bar := margin + len(places)*columnWidth
		fmt.Fprintf(&d.svg, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			bar, d.y-5, s.Time*d.scale, 10, classOf(s.Class).color)
		d.text(bar+int(s.Time*d.scale)+6, d.y, "", StepFigure(s))
	}
}

// box draws a step or a class.
func (d *drawing) box(x int, class, text, title string) {
	if runes := []rune(text); len(runes) > 33 {
		text = string(runes[:32]) + "…"
	}
	fmt.Fprintf(&d.svg, `<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s" `+
		`fill-opacity="0.2" stroke="%s"/>`,
		html.EscapeString(title), x, d.y-rowHeight/2+2, columnWidth-10, rowHeight-4, classOf(class).color,
		classOf(class).color)
	d.text(x+5, d.y, `font-size="11"`, text)
	d.svg.WriteString("</g>\n")
}

// Note tells how a path was measured.
func Note(untraced float64, clock string, alike int) string {
	return fmt.Sprintf("%s %s without tracing, steps of %d transactions", Figure(untraced), clock, alike)
}
