// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Classes of steps, in the order of tables.
const (
	Sockets   = "sockets and TCP"
	Devices   = "devices"
	Softirqs  = "softirqs"
	Routing   = "routing"
	Netfilter = "netfilter"
	Programs  = "BPF programs"
	Threads   = "threads"
)

type class struct {
	name, color string
	// noun names the steps of kinds, which Total.Count counts. moreNoun and moreKinds belong to Total.More.
	noun, moreNoun   string
	kinds, moreKinds []string
}

var classes = []class{
	{Sockets, "#4e79a7", "packet", "wake-up", []string{"send", "tcp"}, []string{"wake"}},
	{Devices, "#59a14f", "packet", "", []string{"transmit", "receive"}, nil},
	{Softirqs, "#b07aa1", "run", "", []string{"softirq"}, nil},
	{Routing, "#d9822b", "look-up", "", []string{"route"}, nil},
	{Netfilter, "#c7444a", "hook", "", []string{"hook"}, nil},
	{Programs, "#2a9d9d", "run", "", []string{"program"}, nil},
	{Threads, "#8a8a8a", "switch", "call", []string{"run"}, []string{"sent", "read"}},
}

func classOf(name string) class {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	if i < 0 {
		return class{name: name, color: "#8a8a8a"}
	}
	return classes[i]
}

// Total is the steps of one class.
type Total struct {
	Class string `json:"class"`
	// Count is the number of its events of note: packets sent and received by a socket or a
	// device, softirqs, look-ups, hooks, runs of programs, and switches between threads.
	Count int `json:"count"`
	// More is the number of its other steps of note: readers woken, and calls of threads.
	More int     `json:"more,omitempty"`
	Sum  float64 `json:"sum"`
}

// String returns the class and its counts in words.
func (t Total) String() string {
	c, count, more := classOf(t.Class), "", ""
	if t.Count > 0 {
		count = countOf(t.Count, c.noun)
	}
	if t.More > 0 {
		more = countOf(t.More, c.moreNoun)
	}
	if count+more == "" {
		return t.Class
	}
	return fmt.Sprintf("%s (%s)", t.Class, joined(", ", count, more))
}

// Totals returns the sums of all classes, in their order.
func Totals(steps []result.Step) (totals []Total) {
	for _, c := range classes {
		t := Total{Class: c.name}
		for _, s := range steps {
			switch {
			case s.Class != c.name:
				continue
			case slices.Contains(c.kinds, s.Kind):
				t.Count++
			case slices.Contains(c.moreKinds, s.Kind):
				t.More++
			}
			t.Sum += s.Time
		}
		totals = append(totals, t)
	}
	return totals
}

// StepFigure returns the time of a step: "<" and a bound if it is too short.
func StepFigure(s result.Step) string {
	if s.Time == 0 && s.Cost > 0 {
		return "<" + Number(math.Ceil(s.Cost), 0)
	}
	return Number(s.Time, 0)
}

// Path is the drawing of the steps that a row's packets cross.
type Path struct {
	Title, Note string // above its drawing, unless it is empty; below that
	Clock       string // the unit of the figures
	Steps       []result.Step
}

// NewPath returns the path of a trace in the unit of a clock.
func NewPath(title string, t result.Trace, clock string) Path {
	p := Path{Title: title, Clock: clock, Steps: t.Steps, Note: fmt.Sprintf(
		"%s %s without tracing, steps of %d transactions", Number(t.UntracedNS, 0), clock, t.Alike)}
	if len(t.Omitted) > 0 {
		p.Note += "; not shown: " + strings.Join(t.Omitted, ", ")
	}
	return p
}

// Sizes of a drawing.
const (
	rowHeight   = 22
	columnWidth = 210 // of a place
	barsWidth   = 230
	longestBar  = 150
	margin      = 16
)

// Draw writes paths side by side to w as an SVG document: a column for each place, and a bar for the time of each step.
func Draw(w io.Writer, paths ...Path) error {
	var b strings.Builder
	width, height, longest := 0, 0, 1.0
	for _, p := range paths {
		for _, s := range p.Steps {
			longest = max(longest, s.Time)
		}
	}
	for _, p := range paths {
		d := drawing{Path: p, scale: longestBar / longest}
		for _, s := range p.Steps {
			if s.Place != "" && !slices.Contains(d.places, s.Place) {
				d.places = append(d.places, s.Place)
			}
		}
		d.bars = margin + len(d.places)*columnWidth
		d.printf(`<g transform="translate(%d 0)">`, width)
		d.draw()
		d.printf("</g>")
		b.WriteString(d.svg.String())
		width += d.bars + barsWidth
		height = max(height, d.y+margin)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12">`+"\n"+`<rect class="back" width="100%%" height="100%%" fill="#ffffff"/>`+
		"\n%s</svg>\n", width, height, width, height, b.String())
	return err
}

type drawing struct {
	Path
	places  []string // in the order in which packets come to them
	bars, y int      // the left of the bars, and the middle of the line
	scale   float64
	svg     strings.Builder
}

func (d *drawing) printf(format string, args ...any) { fmt.Fprintf(&d.svg, format+"\n", args...) }

func (d *drawing) text(x int, attributes, text string) {
	d.printf(`<text x="%d" y="%d" dominant-baseline="central" fill="#222222" %s>%s</text>`, x, d.y, attributes,
		html.EscapeString(text))
}

func (d *drawing) draw() {
	d.y = margin + rowHeight/2
	if d.Title != "" {
		d.text(margin, `font-size="15" font-weight="bold"`, d.Title)
		d.y += rowHeight
	}
	d.text(margin, "", d.Note)
	for _, direction := range []string{result.Request, result.Reply} {
		d.y += 2 * rowHeight
		d.text(d.bars, `font-weight="bold"`, direction)
		for i, place := range d.places {
			d.text(margin+i*columnWidth, `font-weight="bold"`, place)
		}
		column, last := 0, -1
		for _, s := range d.Steps {
			if s.Direction == direction {
				if s.Place != "" { // else it is in the column of the step before it
					column = slices.Index(d.places, s.Place)
				}
				d.step(s, column, last)
				last = column
			}
		}
	}
	d.y += rowHeight
	for _, t := range Totals(d.Steps) {
		if t != (Total{Class: t.Class}) {
			d.y += rowHeight
			d.box(margin, t.Class, t.String(), t.String())
			d.text(margin+columnWidth, "", Number(t.Sum, 0)+" "+d.Clock)
		}
	}
	d.y += rowHeight / 2
}

// step draws a step in a column, after one in the last column; -1 for none.
func (d *drawing) step(s result.Step, column, last int) {
	d.y += rowHeight
	if last >= 0 && last != column { // from the side of the box above to the top of this one
		from := margin + last*columnWidth
		if column > last {
			from += columnWidth - 10
		}
		d.printf(`<path d="M%d %d H%d V%d" stroke="#555555" fill="none"/>`, from, d.y-rowHeight,
			margin+column*columnWidth+columnWidth/2, d.y-rowHeight/2+2)
	}
	title := fmt.Sprintf("%s: %s, quartiles %s to %s %s", s, StepFigure(s), Number(s.Low, 0), Number(s.High, 0), d.Clock)
	d.box(margin+column*columnWidth, s.Class, s.String(), title)
	d.printf(`<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, d.bars, d.y-5, s.Time*d.scale, 10,
		classOf(s.Class).color)
	d.text(d.bars+int(s.Time*d.scale)+6, "", StepFigure(s))
}

func (d *drawing) box(x int, class, text, title string) {
	if runes := []rune(text); len(runes) > 33 {
		text = string(runes[:32]) + "…"
	}
	color := classOf(class).color
	d.svg.WriteString("<g><title>" + html.EscapeString(title) + "</title>")
	d.printf(`<rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="%s" fill-opacity="0.2" stroke="%s"/>`, x,
		d.y-rowHeight/2+2, columnWidth-10, rowHeight-4, color, color)
	d.text(x+5, `font-size="11"`, text)
	d.printf("</g>")
}
