// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"image"
	_ "image/png" // which the page makes
	"math"
	"os"
	"strings"
	"testing"

	"mustang/internal/report"
	"mustang/internal/testkit"
)

// TestTicks checks that the axis of ratios has round numbers that have room, whatever its range.
func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		low, high float64
		want      string
	}{
		{0.83, 1.02, "1 0.85 0.9 0.95"}, {0.45, 2.1, "1 0.5 2"}, {0.98, 1.02, "1 0.98 0.99 1.01 1.02"},
		{0.01, 2, "1 0.01 0.05 0.1 0.2 0.5 2"},
		{1e-300, 1e300, ""}, {1, 1.01, ""}, {1e-9, 1e-8, ""}, {3e12, 4e12, ""},
	} {
		var got []string
		for _, at := range (&drawing{low: tc.low, high: tc.high, left: 100, right: 350}).ticks() {
			got = append(got, tickLabel(at))
		}
		testkit.Check(t, (tc.want == "" || strings.Join(got, " ") == tc.want) && len(got) <= mostTicks,
			"%g to %g: %q, want %s", tc.low, tc.high, got, tc.want)
	}
}

// TestFarIntervals checks that one wild interval does not flatten a chart, and ends in an arrow.
func TestFarIntervals(t *testing.T) {
	c := report.Chart{Marks: []report.Mark{{Value: 0.9, Low: 1e-6, High: 1.1}, {Value: 1.2, Low: 1.1, High: 1e9}}}
	low, high := bounds(c)
	testkit.Check(t, !(low < 0.5) && !(high > 2) && !(low > 0.9) && !(high < 1.2), "from %g to %g", low, high)
}

// TestColorsOfSeries checks that each color of a series has a symbol, and that an unknown color does not become CSS.
func TestColorsOfSeries(t *testing.T) {
	seen := map[string]bool{}
	for _, color := range []string{"gray", "slate", "orange", "purple", "blue", "teal", "olive", `red)"><script>`} {
		svg := string(draw(report.Chart{Title: "a", Marks: []report.Mark{{Label: "b", Color: color, Value: 1, Low: 1, High: 1,
			Text: "1"}}}))
		outline := symbol(ink(color), 0, 0)
		if strings.Contains(svg, "script") || !strings.Contains(svg, "var(--"+ink(color)+")") || seen[outline] &&
			ink(color) == color {
			t.Errorf("%s:\n%s", color, svg)
		}
		seen[outline] = true
	}
	n := textWidth("WW") - textWidth("ii")
	testkit.Check(t, !math.IsNaN(n) && !(n <= 0), "a wide text is %g wider", n)
}

// axe is the checker of accessibility, which make page installs beside the page's libraries. It is in no page.
const axe = "../../../build/npm/node_modules/axe-core/axe.min.js"

// alike removes table rows that look like a row above them. They differ only in text, which does not matter to
// axe-core, but takes it most of its time.
const alike = `for (const body of document.querySelectorAll('tbody')) {
  const seen = new Set();
  for (const row of [...body.rows]) {
    const look = row.outerHTML.replace(/>[^<]*[^<\s][^<]*</g, '>x<').replace(/ (?!class|style)([\w-]+)="[^"]*"/g, ' $1');
    if (seen.has(look)) row.remove();
    seen.add(look);
  }
}`

// TestAccessible checks pages that together have all parts and colors, in both color schemes and on a phone.
// axe-core finds no violation of WCAG 2, level A and AA. A scheme changes only colors: the dark one is checked by
// the rules on colors.
func TestAccessible(t *testing.T) {
	b := startBrowser(t)
	checker, err := os.ReadFile(axe)
	testkit.Require(t, err == nil, "%v: run make page", err)
	for _, name := range []string{"suites", "counted", "recorded-links"} {
		f := sample(t, name)
		page := onDisk(t, f)
		const all = `['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']`
		for _, view := range []struct {
			scheme string
			width  int64
			rules  string
		}{{"light", 1280, all}, {"dark", 1280, `['color-contrast', 'link-in-text-block']`}, {"light", 390, all}} {
			t.Run(name+" "+view.scheme, func(t *testing.T) {
				b.load(t, page, view.width, view.scheme)
				evaluate[any](t, b, alike+string(checker)+"; null")
				for _, found := range evaluate[[]string](t, b, `axe.run({ runOnly: `+view.rules+`, resultTypes: ['violations'] })
				  .then(r => r.violations.flatMap(v => v.nodes.slice(0, 4).map(n => v.id + ': ' + n.html.slice(0, 160) + ' ' + n.failureSummary)))`) {
					t.Error(found)
				}
			})
		}
	}
}

// colorsOf counts the colors of a PNG, up to some.
func colorsOf(t *testing.T, data []byte) int {
	t.Helper()
	keepFile(t, "chart.png", data)
	picture, _, err := image.Decode(bytes.NewReader(data))
	testkit.Succeed(t, err)
	seen := map[[3]uint32]bool{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y += 2 {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x += 2 {
			r, g, b, _ := picture.At(x, y).RGBA()
			seen[[3]uint32{r >> 13, g >> 13, b >> 13}] = true
		}
	}
	return len(seen)
}
