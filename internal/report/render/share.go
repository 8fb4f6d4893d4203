// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"mustang/internal/report"
)

// Font size, line height and margin of a shared picture, in pixels.
const shareSize, shareLine, shareEdge = 22, 31, 44

var (
	shareInk   = color.RGBA{0x1c, 0x24, 0x30, 0xff}
	sharePaper = color.RGBA{0xff, 0xff, 0xff, 0xff}
)

// Shared is the answer of a report as one picture and as text: verdict, table, machine, kernel and command.
type Shared struct{ lines []string }

// Share returns the answer of a report, which fits on a slide.
func Share(r *report.Report) (Shared, error) {
	var text bytes.Buffer
	err := Answer(&text, r, "", Options{})
	return Shared{strings.Split(strings.TrimSpace(text.String()), "\n")}, err
}

// Markdown writes the text for an issue or a talk.
func (s Shared) Markdown(w io.Writer) error {
	_, err := fmt.Fprintf(w, "```text\n%s\n```\n", strings.Join(s.lines, "\n"))
	return err
}

// SVG writes the picture with a font of the viewer.
func (s Shared) SVG(w io.Writer) error {
	var b strings.Builder
	width := 2*shareEdge + longest(s.lines)*shareSize*3/5 // a letter of a fixed width is 0.6 of its height
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"`, width, s.height())
	fmt.Fprintf(&b, ` font-family="monospace" font-size="%d" fill="#%02x%02x%02x">`, shareSize, shareInk.R, shareInk.G,
		shareInk.B)
	fmt.Fprintf(&b, "\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n")
	for i, line := range s.lines {
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" xml:space=\"preserve\">%s</text>\n", shareEdge, baseline(i),
			html.EscapeString(line))
	}
	_, err := io.WriteString(w, b.String()+"</svg>\n")
	return err
}

// PNG writes the picture with the font Go Mono.
func (s Shared) PNG(w io.Writer) error {
	parsed, err := opentype.Parse(gomono.TTF)
	if err != nil {
		return err
	}
	face, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: shareSize, DPI: 72})
	if err != nil {
		return err
	}
	advance := font.MeasureString(face, strings.Repeat("m", longest(s.lines))).Ceil()
	picture := image.NewRGBA(image.Rect(0, 0, advance+2*shareEdge, s.height()))
	draw.Draw(picture, picture.Bounds(), image.NewUniform(sharePaper), image.Point{}, draw.Src)
	for i, line := range s.lines {
		pen := font.Drawer{Dst: picture, Src: image.NewUniform(shareInk), Face: face,
			Dot: fixed.P(shareEdge, baseline(i))}
		pen.DrawString(line)
	}
	return png.Encode(w, picture)
}

func baseline(line int) int { return shareEdge + (line+1)*shareLine }

func (s Shared) height() int { return 2*shareEdge + (len(s.lines)+1)*shareLine }

func longest(lines []string) (most int) {
	for _, line := range lines {
		most = max(most, len([]rune(line)))
	}
	return most
}
