// SPDX-License-Identifier: Apache-2.0

package html

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	xhtml "golang.org/x/net/html"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// sample reads a file of made-up figures.
func sample(t testing.TB, name string) result.File {
	t.Helper()
	f := testkit.Must(result.Read("../testdata/" + name + ".json"))(t)
	return f
}

func pageOf(t testing.TB, f result.File) string {
	t.Helper()
	r := testkit.Must(report.New(f))(t)
	var b strings.Builder
	testkit.Succeed(t, Write(&b, r))
	return b.String()
}

func nodes(t testing.TB, page string) []*xhtml.Node {
	t.Helper()
	root := testkit.Must(xhtml.Parse(strings.NewReader(page)))(t)
	var out []*xhtml.Node
	for n := range root.Descendants() {
		out = append(out, n)
	}
	return out
}

func scriptOf(t testing.TB) string {
	t.Helper()
	script, err := Script()
	testkit.Require(t, err == nil && len(script) >= 10_000,
		"the page has no script (%d bytes, %v): run make page", len(script), err)
	return script
}

// TestPageLoadsNothing parses the page and looks for everything that would make a browser load or run something.
func TestPageLoadsNothing(t *testing.T) {
	for name, f := range map[string]result.File{"one suite": sample(t, "made-up"), "all suites": sample(t, "suites")} {
		t.Run(name, func(t *testing.T) { checkLoadsNothing(t, pageOf(t, f)) })
	}
}

// checkLoadsNothing finds links to anything but a part of the page itself, too.
func checkLoadsNothing(t *testing.T, page string) {
	t.Helper()
	script := scriptOf(t)
	testkit.Check(t, strings.Count(page, "<script>"+script+"</script>") == 1, "the page has no script, or another")
	sum := sha256.Sum256([]byte(script))
	want := "default-src 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
	testkit.Check(t, strings.Contains(xhtml.UnescapeString(page), `content="`+want+`"`),
		"the page does not allow its script alone: %s", want)
	page = strings.Replace(page, "<script>"+script+"</script>", "", 1)
	ids := map[string]bool{}
	for _, n := range nodes(t, page) {
		for _, a := range n.Attr {
			if a.Key == "id" {
				testkit.Check(t, !ids[a.Val], "two elements with the id %q", a.Val)
				ids[a.Val] = true
			}
		}
	}
	for _, word := range []string{"http://", "https://", "url(", "@import", "@font-face", "javascript:", "<script"} {
		testkit.Check(t, !strings.Contains(strings.ToLower(page), word), "page holds %q", word)
	}
	policy := false
	for _, n := range nodes(t, page) {
		if n.Type != xhtml.ElementNode {
			continue
		}
		switch n.Data {
		case "script", "link", "img", "image", "iframe", "object", "embed", "video", "audio", "source", "base", "form", "use":
			t.Errorf("element <%s>", n.Data)
		}
		for _, a := range n.Attr {
			key := strings.ToLower(a.Key)
			if part, ok := strings.CutPrefix(a.Val, "#"); n.Data == "a" && key == "href" && ok && ids[part] {
				continue
			}
			if key == "src" || key == "href" || key == "srcset" || key == "action" || key == "data" ||
				strings.HasPrefix(key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
			if n.Data == "meta" && a.Val == "Content-Security-Policy" {
				policy = true
			}
		}
	}
	testkit.Check(t, policy, "no strict content security policy")
}

func traced(t *testing.T) result.File {
	t.Helper()
	f := sample(t, "turns")
	f.Run.Traces = []result.Trace{
		{Suite: "pod-links", ID: "macvlan/pod-ip", Transactions: 202, Alike: 200, UntracedNS: 16559, Steps: []result.Step{
			{Direction: "request", Class: "sockets and TCP", Kind: "send", Place: "pod-b", Name: "client", Time: 1200},
			{Direction: "request", Class: "devices", Kind: "transmit", Place: "pod-b", Device: "eth0", Time: 300},
			{Direction: "reply", Class: "sockets and TCP", Kind: "send", Place: "pod-a", Name: "server", Time: 1300},
		}},
		{Suite: "latency", ID: "host", Steps: []result.Step{{Direction: "request"}}},
	}
	return f
}

// TestPageHasTracedSteps checks that the page draws each traced path of the suite, folded.
func TestPageHasTracedSteps(t *testing.T) {
	f := traced(t)
	page := pageOf(t, f)
	checkLoadsNothing(t, page)
	_, section, _ := strings.Cut(page, `<section class="part traced" id="pod-links-traced">`)
	section, _, _ = strings.Cut(section, "</section>")
	for _, want := range []string{`<details id="pod-links-path-1"><summary>macvlan/pod-ip: 3 steps</summary>`, "<svg",
		"client sends", "eth0 transmits", "16,559 ns without tracing"} {
		testkit.Check(t, strings.Contains(section, want), "%q is not in the section:\n%s", want, section)
	}
	n := strings.Count(section, "<details")
	testkit.Check(t, n == 2, "%d folded parts, want the list and the path of this suite", n)
	page = pageOf(t, sample(t, "turns"))
	testkit.Check(t, !strings.Contains(page, `traced" id=`), "a file without traces has a section of them")
}

// TestNoiseIsAboveTheAnswer checks that a run beside busy programs has its warning before the answer.
func TestNoiseIsAboveTheAnswer(t *testing.T) {
	const note = "Not reliable: other programs kept 1.9 of 2 CPUs busy. Repeat the run on a quiet machine."
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

// TestPageLooks checks the page at the width of a screen, of a phone and of paper. A script lists the faults.
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
			"each page can repeat headings, which are text": `all('.sort').some(s => s.getClientRects().length)`,
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
