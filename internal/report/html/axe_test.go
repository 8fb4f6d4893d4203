// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"image"
	_ "image/png" // which the page makes
	"os"
	"testing"

	"mustang/internal/testkit"
)

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
	for _, name := range []string{"suites", "counted", "made-up", "recorded-links", "recorded-switching"} {
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
