// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestNoiseIsAboveTheAnswer checks that a run beside busy programs has its warning before the answer.
func TestNoiseIsAboveTheAnswer(t *testing.T) {
	const note = "Others kept 1.9 CPUs busy. Repeat the run on a quiet machine."
	f := sample(t, "recorded-links")
	f.Run.Notes = []string{note}
	page := pageOf(t, f)
	banner := strings.Index(page, `<p class="warning">`+note+"</p>")
	testkit.Check(t, banner >= 0 && banner <= strings.Index(page, `aria-label="Answer"`) && strings.Count(page, note) == 1,
		"the warning is at %d, %d times", banner, strings.Count(page, note))
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
		got := string(prose(text))
		testkit.Check(t, got == want, "%q, want %q", got, want)
	}
}

// TestPageLooks checks the page at the width of a screen, of a phone and of paper. A script lists what is wrong.
func TestPageLooks(t *testing.T) {
	b := startBrowser(t)
	for _, view := range []struct {
		file   string
		width  int64
		scheme string
		wrong  map[string]string
	}{
		{"recorded-links", 1280, "light", map[string]string{
			"sentences and pictures are on the first screen": `Math.max(...all('.sentences, .answers .forests svg').map(e => box(e).bottom)) > 800`,
			"the legend is two lines at most between the sentences and the pictures": `box(one('.sentences')).bottom > box(one('.key')).top ||
			  box(one('.key')).bottom > box(one('.answers .forests')).top || box(one('.key')).height > 40`,
		}},
		{"recorded-links", 390, "light", map[string]string{
			"pictures stack": `all('.answers .forests figure').filter(f => f.offsetParent).map(box).some(b => b.left < 0 ` +
				`|| b.right > innerWidth)`,
			"no heading sorts": `(unfold(), all('.sort').some(s => s.checkVisibility()))`,
		}},
		{"recorded-links", 725, "print", map[string]string{
			"paper has no steps, no evidence and no triangles": `all('.traced, .proof').some(s => s.checkVisibility()) ||
			  all('summary').some(s => getComputedStyle(s).listStyleType !== 'none')`,
		}},
		{"recorded-pod-links", 1280, "light", shortPage(7500)},
		{"recorded-pod-links", 390, "light", shortPage(16000)},
		{"recorded-pod-links", 390, "light", map[string]string{
			"figures have no line above them": `(unfold(), all('.rows .first td').some(c => parseFloat(getComputedStyle(c).borderTopWidth) > 0))`,
		}},
	} {
		b.load(t, onDisk(t, sample(t, view.file)), view.width, view.scheme)
		for what, wrong := range view.wrong {
			const names = `const all = s => [...document.querySelectorAll(s)], one = s => document.querySelector(s),
			  box = e => e.getBoundingClientRect(), unfold = () => all('details').forEach(d => { d.open = true; });`
			testkit.Check(t, !evaluate[bool](t, b, `(() => { `+names+` return `+wrong+`; })()`),
				"%s at a width of %d (%s): not that %s", view.file, view.width, view.scheme, what)
		}
	}
}

// shortPage is that a suite of many rows is some screens: the answer and the summary are open, and links lead to all
// other parts.
func shortPage(most int) map[string]string {
	return map[string]string{
		"it is short": fmt.Sprintf(`document.documentElement.scrollHeight > %d`, most),
		"the answer and the summary are open": `['.answers', '.summary td', '.answers svg'].map(one)
		  .some(e => !e.checkVisibility({ contentVisibilityAuto: true }) || e.closest('details'))`,
		"links lead to all parts": `all('.suite > section[id], .suite > div[id]').some(s => !one('.parts a[href="#' + s.id + '"]'))`,
	}
}
