// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"html"
	"html/template"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chartWidth is the charts' width in their own units. They scale with the page;
// the width is that of a phone, so that text stays legible there.
const (
	chartWidth  vg.Length = 460
	forestWidth vg.Length = 430 // of which three lie side by side
)

// Texts of these beginnings, which no label has, stand for the begin and the end of a row, or of the caption of a group, which has the
// number after those of all rows: the drawing library knows no groups.
const (
	opening = "\u27e6"
	closing = "\u27e7"
)

// shortText is the width up to which a text has room in whatever font.
const shortText vg.Length = 40

// brief shortens what the drawing library says of each text and line: the page's style says it of all.
func shortenSVG(svg string) string {
	return strings.NewReplacer(
		` transform="scale(1, -1)"\n\t`, ` `, `style="font-size:13px;fill:var(--text)"`, `class="t"`, `style="font-size:13px;fill:var(--muted)"`, `class="u"`,
		`style="font-weight:bold;font-size:13px;fill:var(--text)"`, `class="b"`, `style="fill:none;stroke:var(--grid);stroke-width:0.6" `, `class="g"`,
		`style="fill:none;stroke:`, `class="l" style="stroke:`,
	).Replace(svg)
}

// tip is the color of a row and what it tells.
type tip struct {
	color, text string
	path        int
}

// fontSize is the size of a chart's text in the same units.
const fontSize vg.Length = 13

// canvas draws SVG and records the width of each text.
type canvas struct {
	*vgsvg.Canvas
	widths []vg.Length
}

// FillString implements vg.Canvas.
func (c *canvas) FillString(face font.Face, at vg.Point, s string) {
	c.widths = append(c.widths, face.Width(s))
	c.Canvas.FillString(face, at, s)
}

// typeface makes text styles of the charts' font. It has a font cache of its own,
// since the library's default is a global variable.
type typeface struct{ handler text.Plain }

// newTypeface loads the font, which is compiled in.
func newTypeface() typeface {
	return typeface{text.Plain{Fonts: font.NewCache(liberation.Collection())}}
}

// style makes a text style; x aligns as in draw.XLeft.
func (t typeface) style(i ink, bold bool, x text.XAlignment) text.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: fontSize}
	if bold {
		f.Weight = 2 // golang.org/x/image/font.WeightBold
	}
	return text.Style{Color: i.color(), Font: f, XAlign: x, YAlign: draw.YCenter, Handler: t.handler}
}

// textStart matches the start of a text element with its font.
var textStart = regexp.MustCompile(`(?s)<text ([^>]*?)style="font-family:[^;]*;font-variant:[^;]*;font-weight:([^;]*);font-style:[^;]*;`)

// render draws a plot as inline SVG for the page: it scales, takes its colors
// from the page's style, names itself to screen readers, and keeps its layout
// with whatever font the reader's machine has.
func render(p *plot.Plot, size vg.Point, label string, tips []tip) template.HTML {
	width, height := size.X, size.Y
	c := &canvas{Canvas: vgsvg.New(width, height)}
	p.Draw(draw.NewCanvas(c, width, height))
	var b strings.Builder
	// strings.Builder returns no error.
	_, _ = c.WriteTo(&b)
	_, body, _ := strings.Cut(b.String(), "<svg ")
	_, body, _ = strings.Cut(body, ">")
	next := 0
	body = textStart.ReplaceAllStringFunc(body, func(m string) string {
		parts := textStart.FindStringSubmatch(m)
		fit := ""
		if next < len(c.widths) && c.widths[next] > 0 {
			fit = fmt.Sprintf(`textLength="%.1f" lengthAdjust="spacingAndGlyphs" `, c.widths[next].Points())
			if c.widths[next] < shortText {
				fit = ""
			}
		}
		next++
		weight := ""
		if parts[2] != "normal" {
			weight = "font-weight:" + parts[2] + ";"
		}
		return "<text " + parts[1] + fit + `style="` + weight
	})
	body = grouped(body, width, tips)
	name := html.EscapeString(label)
	// Every string in it was escaped by the drawing library or just here.
	return template.HTML(fmt.Sprintf(`<svg class="chart" viewBox="0 0 %.5g %.5g" role="img" aria-label="%s"><title>%s</title>%s`,
		width.Points(), height.Points(), name, name, shortenSVG(recolor(body))))
}

// groupEnds matches the texts that stand for the ends of rows.
var groupEnds = regexp.MustCompile(`(?s)<text [^>]*>(` + opening + `|` + closing + `)([\d. ]+)</text>`)

// grouped puts each row into a group with an area that has its tip, and each caption into one that has its height.
func grouped(body string, width vg.Length, tips []tip) string {
	return groupEnds.ReplaceAllStringFunc(body, func(m string) string {
		parts := groupEnds.FindStringSubmatch(m)
		var i int
		var y, h float64
		// Texts have one figure to three, and are those of this package.
		_, _ = fmt.Sscan(parts[2], &i, &y, &h)
		switch opens := parts[1] == opening; {
		case i >= len(tips) && opens:
			return fmt.Sprintf(`<g class="head" data-height="%g">`, y)
		case i >= len(tips):
			return "</g>"
		case opens:
			return fmt.Sprintf(`<g class="mark s-%s">`, html.EscapeString(tips[i].color))
		}
		path := ""
		if tips[i].path > 0 {
			path = fmt.Sprintf(` data-path="%d"`, tips[i].path)
		}
		return fmt.Sprintf(`<rect class="hit" x="0" y="%.1f" width="%.1f" height="%.1f" data-tip="%s"%s/></g>`, y, width.Points(), h, html.EscapeString(tips[i].text), path)
	})
}

// widest is the width of the widest of texts.
func (t typeface) widest(texts ...string) vg.Length {
	var w vg.Length
	style := t.style(inkText, false, draw.XLeft)
	for _, s := range texts {
		w = max(w, style.Width(s))
	}
	return w
}
