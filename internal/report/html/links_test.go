// SPDX-License-Identifier: Apache-2.0

package html

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestNoiseIsAboveTheAnswer checks that a run beside busy programs has its warning before the answer.
func TestNoiseIsAboveTheAnswer(t *testing.T) {
	const note = "Others kept 1.9 CPUs busy. Repeat the run on a quiet machine."
	f := sample(t, "recorded-links")
	f.Run.Notes = []string{note}
	page := pageOf(t, f)
	banner := strings.Index(page, `<p class="warning">`+note+"</p>")
	if banner < 0 || banner > strings.Index(page, `aria-label="Answer"`) || strings.Count(page, note) != 1 {
		t.Errorf("the warning is at %d, %d times", banner, strings.Count(page, note))
	}
}

// TestCommandsStayWhole checks that commands in sentences are code with plain spaces, and that other text is escaped.
func TestCommandsStayWhole(t *testing.T) {
	for text, want := range map[string]string{
		"A < B. More certain: mustang bench pod-links\u00a0--time\u00a010m": "A &lt; B. More certain: " +
			"<code>mustang bench pod-links --time 10m</code>",
		"Run mustang bench --vm pod-links, then look.": "Run <code>mustang bench --vm pod-links</code>, then look.",
		"More certain: --time\u00a010m":                "More certain: <code>--time 10m</code>",
		"mustang bench measures":                       "mustang bench measures",
	} {
		if got := string(prose(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPicturesStackOnPhones checks that a phone shows the pictures of all workloads, and no headings that sort.
func TestPicturesStackOnPhones(t *testing.T) {
	b := startBrowser(t)
	b.load(t, onDisk(t, sample(t, "recorded-links")), 390, "light")
	const outside = `[...document.querySelectorAll('.answers .forests figure')].filter(f => f.offsetParent !== null)
	  .map(f => f.getBoundingClientRect()).filter(box => box.left < 0 || box.right > innerWidth).length`
	if n := evaluate[int](t, b, outside); n > 0 {
		t.Errorf("%d pictures are beside the screen", n)
	}
	const heads = `[...document.querySelectorAll('.sort')].filter(s => s.checkVisibility()).length`
	if n := evaluate[int](t, b, openAll+"; "+heads); n > 0 {
		t.Errorf("%d headings sort", n)
	}
}

// TestLegendIsAboveThePictures checks that the legend is two lines at most between the sentences and the pictures.
func TestLegendIsAboveThePictures(t *testing.T) {
	b := startBrowser(t)
	b.load(t, onDisk(t, sample(t, "recorded-links")), 1280, "light")
	const place = `(() => { const box = (s) => document.querySelector(s).getBoundingClientRect();
	  return [box('.sentences').bottom, box('.key').top, box('.key').bottom, box('.answers .forests').top]; })()`
	at := evaluate[[]float64](t, b, place)
	if at[0] > at[1] || at[2] > at[3] || at[2]-at[1] > 40 {
		t.Errorf("sentences end at %g, the legend is from %g to %g, and pictures begin at %g", at[0], at[1], at[2], at[3])
	}
}

// TestPaperLeavesOut checks that paper has neither steps nor evidence, and no triangles.
func TestPaperLeavesOut(t *testing.T) {
	b := startBrowser(t)
	b.load(t, onDisk(t, sample(t, "recorded-links")), 725, "light")
	paper := emulation.SetEmulatedMediaParams{Media: "print"}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, paper); err != nil {
		t.Fatal(err)
	}
	const left = `[...document.querySelectorAll('.traced, .proof')].filter(s => s.checkVisibility()).length +
	  [...document.querySelectorAll('summary')].filter(s => getComputedStyle(s).listStyleType !== 'none').length`
	if n := evaluate[int](t, b, left); n > 0 {
		t.Errorf("%d sections or triangles that paper has no use for", n)
	}
}
