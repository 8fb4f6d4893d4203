// SPDX-License-Identifier: Apache-2.0

package html

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mustang/internal/testkit"
)

func (b *browser) press(t *testing.T, keys string) {
	t.Helper()
	err := chromedp.Do(b.ctx, chromedp.KeyEvent(keys))
	testkit.Require(t, err == nil, "press %q: %v", keys, err)
}

// firstRows are the names of the rows that a table shows, and their figures.
const firstRows = `[...document.querySelectorAll('#pod-links-tcp_stream-1 tbody tr')].filter(r => r.offsetParent ` +
	`!== null)
  .map(r => [...r.cells].map(c => c.textContent.replace(/\s+/g, ' ').trim()))`

// openAll unfolds all parts of the page.
const openAll = `document.querySelectorAll('details').forEach(d => { d.open = true; })`

// keep makes the page keep what it hands to the reader, as [name, base64].
const keep = `window.kept = []; window.blobs = new Map();
  const make = URL.createObjectURL.bind(URL);
  URL.createObjectURL = (blob) => { const url = make(blob); window.blobs.set(url, blob); return url; };
  HTMLAnchorElement.prototype.click = function () { window.kept.push([this.download, window.blobs.get(this.href)]); };
  true`

// kept waits for what was handed to the reader.
const kept = `(async () => {
  for (let i = 0; i < 200 && window.kept.length === 0; i++) await new Promise(r => setTimeout(r, 50));
  const [name, blob] = window.kept.shift();
  const text = [...new Uint8Array(await blob.arrayBuffer())].map(c => String.fromCharCode(c)).join('');
  return [name, btoa(text)];
})()`

// TestTablesInteract sorts and filters a table, and downloads what it shows as CSV.
func TestTablesInteract(t *testing.T) {
	b := startBrowser(t)
	page := onDisk(t, sample(t, "made-up"))
	b.load(t, page, 1280, "light")
	evaluate[any](t, b, openAll)
	all := evaluate[[][]string](t, b, firstRows)
	heads := evaluate[[]string](t, b,
		`[...document.querySelectorAll('#pod-links-tcp_stream-1 thead th')].map(h => h.textContent)`)
	column := slices.IndexFunc(heads, func(h string) bool { return strings.HasPrefix(h, "figure") })
	testkit.Require(t, column >= 0 && len(all) == 19, "%d rows, columns %q", len(all), heads)
	sortBy := `document.querySelectorAll('#pod-links-tcp_stream-1 thead button')[` + strconv.Itoa(column) + `].click()`
	evaluate[any](t, b, sortBy)
	down := figures(evaluate[[][]string](t, b, firstRows), column)
	evaluate[any](t, b, sortBy)
	up := figures(evaluate[[][]string](t, b, firstRows), column)
	if len(down) < 15 || !slices.IsSortedFunc(down, func(a, b float64) int { return int(b*1000) - int(a*1000) }) ||
		!slices.IsSorted(up) {
		t.Errorf("sorted down %v, up %v", down, up)
	}
	evaluate[any](t, b, sortBy)
	if again := evaluate[[][]string](t, b, firstRows); len(again) != len(all) || again[0][0] != all[0][0] ||
		again[18][0] != all[18][0] {
		t.Errorf("a third click does not bring back the order of the file: %q", again)
	}
	evaluate[any](t, b, `(() => { const field = document.querySelector('[aria-label^="Filter rows of Throughput (one"]');
	  field.value = 'bridge'; field.dispatchEvent(new Event('input')); })()`)
	some := evaluate[[][]string](t, b, firstRows)
	if len(some) == 0 || len(some) >= len(all) ||
		slices.ContainsFunc(some, func(r []string) bool { return !strings.Contains(strings.Join(r, " "), "bridge") }) {
		t.Errorf("%d of %d rows after the filter: %q", len(some), len(all), some)
	}
	evaluate[bool](t, b, keep)
	file, lines := b.download(t, "Throughput (one")
	testkit.Check(t, regexp.MustCompile(`^pod-links-all-throughput(-\d{8}T\d{6}Z)?\.csv$`).MatchString(file),
		"a file %q", file)
	testkit.Check(t, len(lines) == 1+len(some) && lines[1][0] == some[0][0] && len(lines[0]) == len(heads),
		"CSV of %d rows: %q", len(some), lines)
	b.quiet(t, page)
}

// figures are the numbers of a column, without rows that have none.
func figures(rows [][]string, column int) []float64 {
	var out []float64
	for _, row := range rows {
		if v, err := strconv.ParseFloat(strings.ReplaceAll(row[column], ",", ""), 64); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// TestChartsInteract reaches the rows of a chart by keyboard, hides a group, and saves a chart as PNG.
func TestChartsInteract(t *testing.T) {
	b := startBrowser(t)
	page := onDisk(t, sample(t, "made-up"))
	b.load(t, page, 1280, "dark")
	const focused = `document.activeElement.dataset.tip || document.activeElement.textContent || ` +
		`document.activeElement.tagName`
	found := ""
	for range 40 {
		b.press(t, "\t")
		if found = evaluate[string](t, b, focused); strings.HasSuffix(found, " samples.") {
			break
		}
	}
	if !regexp.MustCompile(`^\S.*: [\d.]+ Gbit/s.*; 10 samples\.$`).MatchString(strings.ReplaceAll(found, "\u00a0", " ")) {
		t.Fatalf("Tab reaches no row of a chart: %q", found)
	}
	const tipText = `(() => { const tip = document.getElementById('tip'); return tip && !tip.hidden ? tip.textContent ` +
		`: ''; })()`
	tip := evaluate[string](t, b, tipText)
	testkit.Check(t, tip == found, "the tip says %q", tip)
	b.press(t, kb.ArrowDown)
	if next := evaluate[string](t, b, focused); next == found || evaluate[string](t, b, tipText) != next {
		t.Errorf("the arrow leads from %q to %q", found, next)
	}
	const shown = `[...document.querySelectorAll('.mark.s-orange, tr.s-orange')].filter(m => m.getClientRects().length ` +
		`> 0).length`
	before := evaluate[int](t, b, shown)
	evaluate[any](t, b, `document.querySelector('.group.orange').click()`)
	after := evaluate[int](t, b, shown)
	testkit.Check(t, before != 0 && after == 0, "%d marks of a group are shown, and %d after it is hidden", before, after)
	evaluate[any](t, b, `document.querySelector('.group.orange').click()`)
	again := evaluate[int](t, b, shown)
	testkit.Check(t, again == before, "%d marks of %d are shown again", again, before)
	evaluate[bool](t, b, keep)
	evaluate[any](t, b, `document.querySelector('[aria-label^="Download the chart"]').click()`)
	file := evaluate[[2][]byte](t, b, strings.Replace(kept, "[name, btoa", "[btoa(name), btoa", 1))
	if !regexp.MustCompile(`^pod-links-streams-ratio-to-macvlan-ebpf-gbit-s(-\d{8}T\d{6}Z)?\.png$`).Match(file[0]) {
		t.Errorf("a file %q", file[0])
	}
	colors := colorsOf(t, file[1])
	testkit.Check(t, colors >= 5, "the picture of %d bytes has %d colors", len(file[1]), colors)
	b.quiet(t, page)
}

// TestPathOpensBesideItsRow opens the traced path of a row by its mark and by its name.
func TestPathOpensBesideItsRow(t *testing.T) {
	b := startBrowser(t)
	page := onDisk(t, traced(t))
	b.load(t, page, 1280, "light")
	const sideways = `(() => { const panel = document.querySelector('dialog[open]'); return panel.scrollWidth - ` +
		`panel.clientWidth +
	  Math.max(0, ...[...panel.querySelectorAll('.scroll')].map(s => s.scrollWidth - s.clientWidth)); })()`
	for _, open := range []string{
		`document.querySelector('.hit[data-path]').dispatchEvent(new MouseEvent('click', { bubbles: true }))`,
		`[...document.querySelectorAll('td a')].find(a => a.textContent === 'macvlan').click()`,
	} {
		evaluate[any](t, b, open)
		got := evaluate[string](t, b,
			`(() => { const panel = document.querySelector('dialog[open]'); return panel ? panel.textContent : ''; })()`)
		testkit.Check(t, strings.Contains(got, "macvlan/pod-ip: 3 steps") && strings.Contains(got, "client sends"),
			"%s: %q", open, got)
		more := evaluate[int](t, b, sideways)
		testkit.Check(t, more <= 0, "the panel scrolls %d sideways", more)
		evaluate[any](t, b, `document.querySelector('dialog[open]').close()`)
	}
	b.load(t, page, 390, "light")
	evaluate[any](t, b, `document.querySelector('.hit[data-path]').dispatchEvent(new MouseEvent('click', { bubbles: `+
		`true }))`)
	list := evaluate[string](t, b,
		`[...document.querySelectorAll('dialog[open] .steps li')].filter(li => li.offsetParent).map(li => `+
			`li.textContent).join()`)
	if more := evaluate[int](t, b, sideways); more > 0 || !strings.Contains(strings.ReplaceAll(list, "\u00a0", " "),
		"request, pod-b: client sends 1,200 ns") {
		t.Errorf("on a phone the steps are %q, and scroll %d sideways", list, more)
	}
	b.quiet(t, page)
}

// TestReadsWithoutScript checks that all tables and charts are there where the browser runs no script.
func TestReadsWithoutScript(t *testing.T) {
	b := startBrowser(t)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	f := sample(t, "recorded-pod-links")
	b.load(t, onDisk(t, f), 390, "light")
	checkMeasure(t, evaluate[measure](t, b, measureScript), f)
	n := evaluate[int](t, b, `document.querySelectorAll('button, input').length`)
	testkit.Check(t, n == 0, "%d controls without a script", n)
}

// TestPrint prints the largest suite on few pages, and nothing is wider than they are.
func TestPrint(t *testing.T) {
	b := startBrowser(t)
	page := onDisk(t, sample(t, "recorded-pod-links"))
	b.load(t, page, 1280, "light")
	pdf, err := chromedp.Call(b.ctx, cdppage.PrintToPDF, cdppage.PrintToPDFParams{PreferCSSPageSize: new(true),
		PrintBackground: new(true)})
	testkit.Succeed(t, err)
	keepFile(t, "print.pdf", pdf.Data)
	pages := len(regexp.MustCompile(`/Type\s*/Page\b[^s]`).FindAll(pdf.Data, -1))
	testkit.Check(t, pages >= 2 && pages < 20, "%d pages", pages)
	b.load(t, page, 725, "print") // A4 within its margins
	m := evaluate[measure](t, b, measureScript)
	testkit.Check(t, m.Scroll <= m.Width && len(m.Lost) == 0, "%d wide on paper of %d, cut: %q", m.Scroll, m.Width, m.Lost)
}
