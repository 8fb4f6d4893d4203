// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Sizes in the units of a chart, which scales with the page. Three charts lie side by side.
const (
	chartWidth = 430
	headHeight = 22 // of the caption of a group
	rowHeight  = 18
	axisHeight = 22
	fontSize   = 13
	edge       = 5
	shortText  = 40 // a shorter text fits with any font
	farAway    = 1.5
)

type drawing struct {
	report.Chart
	strings.Builder
	low, high   float64 // ends of the logarithmic axis
	left, right float64 // of the axis
}

// draw returns c as an SVG element. It scales, takes its colors from CSS variables, and names itself to screen readers.
// Each row is a group with the class of its color and an area that has its tip.
func draw(c report.Chart) template.HTML {
	d := &drawing{Chart: c}
	d.low, d.high = bounds(c)
	labels, texts, figures := 0.0, 0.0, 0.0
	height := axisHeight
	for i, m := range c.Marks {
		labels, texts, figures = max(labels, textWidth(m.Label)), max(texts, textWidth(m.Text)),
			max(figures, textWidth(m.Figure))
		height += rowHeight
		if d.starts(i) {
			height += headHeight
		}
	}
	d.left = min(labels+20, chartWidth/2)
	d.right = chartWidth - min(texts+figures+30, chartWidth/3)
	name := html.EscapeString(strings.TrimSpace("Chart. " + c.Title + ". " + c.Caption +
		" The figures are in the tables of this page."))
	fmt.Fprintf(d, `<svg class="chart" viewBox="0 0 %d %d" role="img" aria-label="%s"><title>%s</title>`, chartWidth,
		height, name, name)
	d.axis(float64(height - axisHeight))
	y := 0.0
	for i, m := range c.Marks {
		if d.starts(i) {
			fmt.Fprintf(d, `<g class="head" data-height="%d">`, headHeight)
			d.text(label{0, y + headHeight*0.6, d.left, "b", "start", m.Group})
			d.WriteString("</g>")
			y += headHeight
		}
		d.mark(m, y)
		y += rowHeight
	}
	d.WriteString("</svg>")
	return template.HTML(d.String()) // in which every text is escaped
}

func (d *drawing) starts(i int) bool {
	return d.Marks[i].Group != "" && (i == 0 || d.Marks[i].Group != d.Marks[i-1].Group)
}

func (d *drawing) x(ratio float64) float64 {
	return d.left + (d.right-d.left)*math.Log(max(ratio, 1e-300)/d.low)/math.Log(d.high/d.low)
}

func (d *drawing) axis(bottom float64) {
	if d.Band > 0 {
		from, to := max(d.x(1/(1+d.Band)), d.left), min(d.x(1+d.Band), d.right)
		fmt.Fprintf(d, `<rect x="%.1f" y="0" width="%.1f" height="%.1f" style="fill:var(--band)"/>`, from,
			max(to-from, 0), bottom)
	}
	for _, at := range d.ticks() {
		line := "g"
		if at == 1 {
			line = "one"
		}
		fmt.Fprintf(d, `<path class="%s" d="M%.1f 0V%.1f"/>`, line, d.x(at), bottom)
		d.text(label{d.x(at), bottom + 15, chartWidth, "u", "middle", tickLabel(at)})
	}
}

func (d *drawing) mark(m report.Mark, y float64) {
	color, middle, indent := ink(m.Color), y+rowHeight/2, 0.0
	if m.Group != "" {
		indent = 8
	}
	fmt.Fprintf(d, `<g class="mark s-%s">`, color)
	d.text(label{indent, middle + 4.5, d.left - 10 - indent, "t", "start", m.Label})
	d.interval(d.x(m.Low), d.x(m.High), middle, color)
	fill := color
	if m.Hollow {
		fill = "surface"
	}
	fmt.Fprintf(d, `<path class="l" style="fill:var(--%s);stroke:var(--%s)" d="%s"/>`, fill, color,
		symbol(color, d.x(m.Value), middle))
	d.text(label{d.right + 8, middle + 4.5, chartWidth, "t", "start", m.Text})
	d.text(label{chartWidth - edge, middle + 4.5, chartWidth, "u", "end", m.Figure})
	path := ""
	if m.Path > 0 {
		path = fmt.Sprintf(` data-path="%d"`, m.Path)
	}
	fmt.Fprintf(d, `<rect class="hit" x="0" y="%.1f" width="%d" height="%d" data-tip="%s"%s/></g>`, y, chartWidth,
		rowHeight, html.EscapeString(m.Tip), path)
}

type label struct {
	x, y, most           float64 // most is the greatest width
	class, anchor, words string
}

func (d *drawing) text(l label) {
	fit := ""
	if w := min(textWidth(l.words), l.most); w > shortText {
		fit = fmt.Sprintf(` textLength="%.1f" lengthAdjust="spacingAndGlyphs"`, w)
	}
	if l.words != "" {
		fmt.Fprintf(d, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f"%s>%s</text>`,
			l.class, l.anchor, l.x, l.y, fit, html.EscapeString(l.words))
	}
}

func (d *drawing) interval(low, high, y float64, color string) {
	from, to := max(low, d.left), min(high, d.right)
	if to <= from {
		return
	}
	head := func(x, back float64) string {
		return fmt.Sprintf("M%.1f %.1fL%.1f %.1fL%.1f %.1f", x+back, y-3, x, y, x+back, y+3)
	}
	start, end := head(from, 0), head(to, 0)
	if low < from {
		start = head(from, 4)
	}
	if high > to {
		end = head(to, -4)
	}
	fmt.Fprintf(d, `<path class="l" style="fill:none;stroke:var(--%s)" d="M%.1f %.1fH%.1f%s%s"/>`, color, from, y, to,
		start, end)
}

func ink(color string) string {
	if _, known := corners[color]; known {
		return color
	}
	return result.ColorSlate
}

// corners are the number of corners of the symbol of a color, and the angle of the first in degrees.
var corners = map[string][2]int{
	result.ColorSlate: {24, 0}, result.ColorOrange: {4, 45}, result.ColorPurple: {4, 0}, result.ColorTeal: {3, -90},
	result.ColorOlive: {3, 90}, result.ColorBlue: {6, 0}, result.ColorGray: {5, -90},
}

func symbol(color string, x, y float64) string {
	var b strings.Builder
	n, first := corners[color][0], corners[color][1]
	for i := range n {
		angle := (float64(first) + 360*float64(i)/float64(n)) * math.Pi / 180
		fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], x+5*math.Cos(angle), y+5*math.Sin(angle))
	}
	return b.String() + "Z"
}

// bounds returns the ends of a chart's axis: one wild interval does not widen it.
func bounds(c report.Chart) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, m := range c.Marks {
		low, high = min(low, m.Value), max(high, m.Value)
	}
	if c.Band > 0 || low > 0.5 && high < 2 {
		low, high = min(low, 1/(1+c.Band)), max(high, 1+c.Band)
	}
	least, most := low/farAway, high*farAway
	for _, m := range c.Marks {
		low, high = min(low, max(m.Low, least)), max(high, min(m.High, most))
	}
	low = max(low, 1e-300)
	room := max(math.Pow(high/low, 0.04), 1.004)
	return low / room, min(max(high*room, low*1.01), 1e300)
}

const mostTicks = 7

func (d *drawing) ticks() []float64 {
	all := []float64{1}
	if d.high/d.low > 4 {
		for decade := math.Floor(math.Log10(d.low)); decade <= math.Log10(d.high); decade++ {
			all = append(all, math.Pow(10, decade), 2*math.Pow(10, decade), 5*math.Pow(10, decade))
		}
	} else {
		step := math.Pow(10, math.Floor(math.Log10(d.high-d.low)))
		for (d.high-d.low)/step < 3 {
			step /= 2
		}
		for n := math.Ceil(d.low / step); n*step <= d.high; n++ {
			all = append(all, math.Round(n*step*1e6)/1e6)
		}
	}
	var out []float64
	for _, v := range all {
		far := func(at float64) bool {
			return math.Abs(d.x(v)-d.x(at)) > (textWidth(tickLabel(v))+textWidth(tickLabel(at)))/2+8
		}
		if v >= d.low && v <= d.high && len(out) < mostTicks &&
			!slices.ContainsFunc(out, func(at float64) bool { return !far(at) }) {
			out = append(out, v)
		}
	}
	return out
}

func tickLabel(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func textWidth(s string) float64 {
	w := 0.0
	for _, r := range s {
		switch {
		case strings.ContainsRune("ijltfrI|.,:;'!()[]/ -", r):
			w += 0.31
		case strings.ContainsRune("mwMW@%+±~×−", r):
			w += 0.8
		case unicode.IsUpper(r):
			w += 0.7
		case r > unicode.MaxLatin1:
			w++
		default:
			w += 0.56
		}
	}
	return w * fontSize
}
