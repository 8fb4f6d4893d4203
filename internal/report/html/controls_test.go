// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"encoding/csv"
	"image"
	"slices"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// download presses the button of a table that is called so, and returns the file's name and lines.
func (b *browser) download(t *testing.T, label string) (string, [][]string) {
	t.Helper()
	evaluate[any](t, b, `document.querySelector('[aria-label^="Download `+label+`"]').click()`)
	file := evaluate[[2][]byte](t, b, strings.Replace(kept, "[name, btoa", "[btoa(name), btoa", 1))
	lines, err := csv.NewReader(bytes.NewReader(file[1])).ReadAll()
	if err != nil {
		t.Fatalf("%v\n%s", err, file[1])
	}
	return string(file[0]), lines
}

const services = `[aria-label="What a Service costs"]` // the pictures of what a Service costs

// TestHiddenGroupIsGone checks that a hidden group is in no table, no copy of one and no chart, and that the other
// rows of a chart move up.
func TestHiddenGroupIsGone(t *testing.T) {
	b := startBrowser(t)
	page := onDisk(t, sample(t, "recorded-links"))
	b.load(t, page, 1280, "light")
	evaluate[any](t, b, openAll)
	evaluate[bool](t, b, keep)
	const shown = `[...document.querySelectorAll('.comparisons tbody tr')].filter(r => r.getClientRects().length > ` +
		`0).length`
	const height = `document.querySelector('` + services + ` svg').getBoundingClientRect().height`
	_, rows := b.download(t, "Throughput (one")
	compared, tall := evaluate[int](t, b, shown), evaluate[float64](t, b, height)
	picture := func() image.Config {
		evaluate[any](t, b, `document.querySelector('`+services+` [aria-label^="Download the chart"]').click()`)
		file := evaluate[[2][]byte](t, b, strings.Replace(kept, "[name, btoa", "[btoa(name), btoa", 1))
		config, _, err := image.DecodeConfig(bytes.NewReader(file[1]))
		testkit.Succeed(t, err)
		return config
	}
	whole := picture()
	evaluate[any](t, b, `document.querySelector('.group.orange input').click()`)
	if part := picture(); part.Height >= whole.Height {
		t.Errorf("the picture is %d high, and was %d with all groups", part.Height, whole.Height)
	}
	_, fewer := b.download(t, "Throughput (one")
	via := slices.Index(rows[0], "via")
	if len(fewer) >= len(rows) || slices.ContainsFunc(fewer, func(l []string) bool { return l[via] == "iptables" }) {
		t.Errorf("%d of %d lines without iptables: %q", len(fewer), len(rows), fewer)
	}
	n := evaluate[int](t, b, shown)
	testkit.Check(t, n < compared && n != 0, "%d of %d comparisons without iptables", n, compared)
	h := evaluate[float64](t, b, height)
	testkit.Check(t, !(h >= tall), "the chart is %f high, and was %f", h, tall)
	evaluate[any](t, b, `document.querySelector('.group.orange input').click()`)
	h = evaluate[float64](t, b, height)
	testkit.Check(t, h == tall, "shown again, the chart is %f high", h)
	b.quiet(t, page)
}

// TestCSVIsPlain checks that CSV has units, figures without commas, empty cells for missing figures, no formula, and
// a name with suite, part, workload and time.
func TestCSVIsPlain(t *testing.T) {
	b := startBrowser(t)
	f := sample(t, "recorded-pod-links")
	f.Rows = slices.Clone(f.Rows)
	for i := range f.Rows {
		if f.Rows[i].Link == "macvlan" {
			f.Rows[i].Label = `=cmd|"/C calc"!A0`
		}
	}
	b.load(t, onDisk(t, f), 1280, "light")
	evaluate[bool](t, b, keep)
	name, lines := b.download(t, "Request/response (one")
	want := "pod-links-all-request-response-" + f.Run.Started.UTC().Format("20060102T150405Z") + ".csv"
	testkit.Check(t, name == want, "file %q, want %q", name, want)
	all, formulas, figure := "", 0, slices.Index(lines[0], "figure trans./s")
	for _, line := range lines {
		line = slices.Delete(slices.Clone(line), figure+1, figure+2) // the interval
		all += strings.Join(line, "|") + "\n"
		formulas += strings.Count("|"+strings.Join(line, "|"), "|'=cmd")
	}
	testkit.Check(t, !strings.ContainsAny(all, ",–") && formulas != 0 && !strings.Contains("\n"+all, "\n="),
		"%d formulas made text in\n%s", formulas, all)
}

// TestControlsTell checks the text of a filter without a hit, that a copy is confirmed, and that a link to a folded
// part opens it.
func TestControlsTell(t *testing.T) {
	b := startBrowser(t)
	b.load(t, onDisk(t, sample(t, "made-up")), 1280, "light")
	evaluate[any](t, b, openAll)
	const nothing = `[...document.querySelectorAll('.nothing')].filter(p => p.offsetParent).map(p => p.textContent).join()`
	for _, tc := range [][2]string{{"zzz", "no row has “zzz”"}, {"veth", ""}} {
		evaluate[any](t, b, `(() => { const field = document.querySelector('.all input[type=search]');
		  field.value = '`+tc[0]+`'; field.dispatchEvent(new Event('input')); })()`)
		if got := evaluate[string](t, b, nothing); got != tc[1] {
			t.Errorf("a filter of %q says %q", tc[0], got)
		}
	}
	evaluate[any](t, b, `document.querySelectorAll('details').forEach(d => { d.open = false; })`)
	evaluate[bool](t, b, `Object.defineProperty(navigator, 'clipboard', { value: { writeText: async () => {} } }); true`)
	if got := evaluate[string](t, b,
		`(async () => { const copy = document.querySelector('.summary [aria-label^="Copy"]'); copy.click();
	  for (let i = 0; i < 100 && copy.textContent === 'copy'; i++) await new Promise(r => setTimeout(r, 10)); return copy.textContent; })()`); got != "copied" {
		t.Errorf("a copy says %q", got)
	}
	const folded = `document.querySelectorAll('.part > details:not([open])').length`
	before := evaluate[int](t, b, folded)
	if got := evaluate[int](t, b, `(async () => { document.querySelector('.parts a[href="#pod-links-rows"]').click();
	  await new Promise(r => setTimeout(r, 100)); return `+folded+`; })()`); got != before-1 || !evaluate[bool](t, b, `document.querySelector('#pod-links-rows > details').open`) {
		t.Errorf("%d parts are folded, and %d after a link to one", before, got)
	}
}

// TestAnswerIsCopied checks that the answer's buttons copy its sentences as text and as Markdown, with the machine.
func TestAnswerIsCopied(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"recorded-links", "recorded-latency"} {
		f := sample(t, name)
		b.load(t, onDisk(t, f), 1280, "light")
		evaluate[bool](t, b,
			`Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { window.copied = text; } } `+
				`}); true`)
		copied := func(button string) string {
			return evaluate[string](t, b, `(async () => { window.copied = '';
			  [...document.querySelectorAll('.answers > .tools button')].find(b => b.textContent === '`+button+`').click(); return window.copied; })()`)
		}
		text, markdown := copied("Copy as text"), copied("Copy as Markdown")
		lines := strings.Split(text, "\n")
		if len(lines) < 2 || !strings.Contains(lines[len(lines)-1], f.Run.Machine.CPUModel) ||
			strings.Contains(text, "\u00a0") {
			t.Errorf("%s: text %q", name, text)
		}
		testkit.Check(t, strings.HasPrefix(markdown, "- ") && strings.Count(markdown, "\n- ") == len(lines)-2,
			"%s: Markdown %q of %d lines", name, markdown, len(lines))
	}
}
