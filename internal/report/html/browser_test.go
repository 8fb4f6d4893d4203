// SPDX-License-Identifier: Apache-2.0

package html

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// browser is a tab of a headless Chromium.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	requests []string
	problems []string
}

// chromium starts the browser of all tests, with a profile of its own and without the requests that it makes for
// itself. It ends with the tests.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	// Of itself, chromedp takes a temporary profile and removes it at the end.
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(alloc)
	stopChromium = func() error {
		defer stop()
		within, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return chromedp.Cancel(within)
	}
	return ctx, chromedp.Do(ctx)
})

var stopChromium = func() error { return nil } // ends the browser, if it was started

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopChromium(); err != nil {
		fmt.Fprintln(os.Stderr, "end chromium:", err)
		code = 1
	}
	os.Exit(code)
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	testkit.RequireTool(t, "chromium")
	all, err := chromium()
	testkit.Require(t, err == nil, "start chromium: %v", err)
	tab, closeTab := chromedp.NewContext(all)
	t.Cleanup(closeTab)
	b := &browser{ctx: tab}
	err = chromedp.Listen(tab, b.listen)
	_, err1 := chromedp.Call(tab, network.Enable, network.EnableParams{})
	_, err2 := chromedp.Call(tab, runtime.Enable, cdp.Empty{})
	_, err3 := chromedp.Call(tab, log.Enable, cdp.Empty{})
	err = errors.Join(err, err1, err2, err3)
	testkit.Require(t, err == nil, "listen to chromium: %v", err)
	return b
}

// listen keeps requests, and all that the page complains of: exceptions, the
// console, violations of its security policy.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, "console: "+string(e.Type))
	case *log.EventEntryAdded:
		b.problems = append(b.problems, "log: "+e.Entry.Text)
	}
}

// load opens a page at a size and returns when it has loaded. The scheme is "light", "dark", or "print" for paper.
func (b *browser) load(t *testing.T, page string, width int64, scheme string) {
	t.Helper()
	b.mu.Lock()
	b.requests, b.problems = nil, nil
	b.mu.Unlock()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
		Value: scheme}}}
	if scheme == "print" {
		media = emulation.SetEmulatedMediaParams{Media: scheme}
	}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media)
	testkit.Require(t, err == nil, "choose colors: %v", err)
	err = chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(page))
	testkit.Require(t, err == nil, "load %s: %v", page, err)
}

// evaluate runs a script in the page, and waits for what it promises.
func evaluate[T any](t *testing.T, b *browser, script string) T {
	t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	testkit.Require(t, err == nil, "%s: %v", script, err)
	return got
}

// quiet checks that the page loaded only itself and what it made, and logged no errors.
func (b *browser) quiet(t *testing.T, page string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		testkit.Check(t, url == page || strings.HasPrefix(url, "data:") || strings.HasPrefix(url, "blob:"),
			"the page asks for %s", url)
	}
	testkit.Check(t, len(b.problems) == 0, "the page complains: %q", b.problems)
}

// shoot takes a picture of the whole page, to be looked at, with MUSTANG_SCREENSHOTS.
func (b *browser) shoot(t *testing.T, name string) {
	t.Helper()
	if os.Getenv("MUSTANG_SCREENSHOTS") == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	testkit.Require(t, err == nil, "take a picture: %v", err)
	keepFile(t, name+".png", png)
}

// keepFile writes a file to be looked at, with MUSTANG_SCREENSHOTS.
func keepFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if dir := os.Getenv("MUSTANG_SCREENSHOTS"); dir != "" {
		testkit.Succeed(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}

// onDisk writes f's page to a file and returns its URL.
func onDisk(t *testing.T, f result.File) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	testkit.Succeed(t, os.WriteFile(path, []byte(pageOf(t, f)), 0o600))
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// measure has a script's findings in a loaded page.
type measure struct {
	Title    string
	SVGs     int
	Flat     int // charts without a visible area
	Overlaps []string
	Outside  []string // texts that stick out of their chart
	Cut      []string // tables of figures with a hidden part
	Lost     []string // cells of tables that cannot be seen without scrolling sideways
	Rows     map[string]int
	Width    int
	Scroll   int
	Small    float64 // smallest text of a chart, in pixels
}

// measureScript looks at the page as a reader would: are all charts there, do
// texts lie on each other or stick out, does the page scroll sideways?
const measureScript = `(() => {
  const out = {Title: document.title, SVGs: 0, Flat: 0, Overlaps: [], Outside: [], Cut: [], Lost: [], Rows: {}, Small: 1e9,
    Width: document.documentElement.clientWidth, Scroll: document.documentElement.scrollWidth};
  for (const svg of document.querySelectorAll('svg.chart')) {
    const box = svg.getBoundingClientRect();
    out.SVGs++;
    if (box.width < 100 || box.height < 25) out.Flat++;
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([text, a], i) => {
      out.Small = Math.min(out.Small, a.height);
      if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1) out.Outside.push(text);
      for (const [other, b] of texts.slice(i + 1)) {
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 1 && y > 3) out.Overlaps.push(text + ' | ' + other);
      }
    });
  }
  const closed = [...document.querySelectorAll('details:not([open])')];
  closed.forEach(d => d.open = true);
  out.Scroll = Math.max(out.Scroll, document.documentElement.scrollWidth);
  for (const box of document.querySelectorAll('.summary .scroll, .comparisons .scroll, .passed .scroll, .all .scroll')) {
    if (box.scrollWidth > box.clientWidth + 1) out.Cut.push(box.textContent.trim().slice(0, 40));
  }
  for (const cell of document.querySelectorAll('tbody td, tbody th')) {
    const box = cell.getBoundingClientRect();
    if (getComputedStyle(cell.closest('section')).display === 'none') continue; // paper has not all sections
    if (box.width === 0 || box.left < 0 || box.right > out.Width + 1) out.Lost.push(cell.textContent.trim().slice(0, 40));
  }
  closed.forEach(d => d.open = false);
  for (const t of document.querySelectorAll('table.rows')) out.Rows[t.id] = t.tBodies[0].rows.length;
  return out;
})()`

// TestReportInChromium loads reports in a real browser. Everything shows, at any width and in both color schemes,
// without network requests.
func TestReportInChromium(t *testing.T) {
	b := startBrowser(t)
	full := sample(t, "made-up")
	long := full
	long.Rows = append([]result.Row(nil), full.Rows...)
	for i := range long.Rows {
		row := &long.Rows[i]
		row.Note = strings.Repeat("unbreakable", 20)
		if row.Status != result.StatusOK {
			row.Reason = strings.Repeat("very-long-reason", 20)
		}
	}
	few := sample(t, "made-up")
	for i := range few.Rows {
		few.Rows[i].Samples, few.Rows[i].CI95 = few.Rows[i].Samples[:min(3, len(few.Rows[i].Samples))], nil
	}
	for i := range few.Run.Comparisons {
		few.Run.Comparisons[i].Ratios, few.Run.Comparisons[i].CI95 = few.Run.Comparisons[i].Ratios[:3], nil
	}
	suites := sample(t, "suites")
	for _, tc := range []struct {
		name   string
		file   result.File
		width  int64
		scheme string
	}{
		{"light", full, 1280, "light"},
		{"narrow", full, 390, "light"},
		{"3-rounds", few, 1280, "light"},
		{"links", sample(t, "recorded-links"), 1280, "light"},
		{"links-dark", sample(t, "recorded-links"), 1280, "dark"},
		{"links-phone", sample(t, "recorded-links"), 390, "light"},
		{"long", long, 400, "light"},
		{"counted-narrow", sample(t, "counted"), 500, "light"},
		{"suites-dark", suites, 1280, "dark"},
		{"suites-narrow", suites, 390, "light"},
		{"empty", result.File{Schema: result.Schema}, 400, "light"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			page := onDisk(t, tc.file)
			b.load(t, page, tc.width, tc.scheme)
			checkMeasure(t, evaluate[measure](t, b, measureScript), tc.file)
			b.shoot(t, tc.name)
			b.quiet(t, page)
		})
	}
}

func chartsOf(t *testing.T, f result.File) int {
	t.Helper()
	r := testkit.Must(report.New(f))(t)
	n := 0
	for _, suite := range r.Suites {
		for _, w := range suite.Workloads {
			n += len(w.Forest) + len(w.Services)
		}
	}
	return n
}

// checkMeasure compares what a page shows to its file.
func checkMeasure(t *testing.T, m measure, f result.File) {
	t.Helper()
	charts := chartsOf(t, f)
	if want := strings.TrimSpace("mustang bench " + f.Run.Suite); m.Title != want {
		t.Errorf("title %q, want %q", m.Title, want)
	}
	testkit.Check(t, m.SVGs == charts && m.Flat == 0,
		"%d charts, %d of them without an area; want %d and 0", m.SVGs, m.Flat, charts)
	testkit.Check(t, len(m.Overlaps) == 0 && len(m.Outside) == 0,
		"texts on each other: %q, out of their chart: %q", m.Overlaps, m.Outside)
	testkit.Check(t, m.Scroll <= m.Width, "the page is %d wide in a window of %d", m.Scroll, m.Width)
	testkit.Check(t, m.Width > 700 || len(m.Lost) == 0, "cells out of sight at a width of %d: %q", m.Width, m.Lost)
	testkit.Check(t, m.Width <= 1000 || len(m.Cut) == 0, "tables cut off at a width of %d: %q", m.Width, m.Cut)
	testkit.Check(t, charts <= 0 || !(m.Small < 9), "smallest text of a chart is %.1f pixels high", m.Small)
	want, skipped := map[string]int{}, map[string]int{} // skipped rows have their reasons elsewhere, unless all are
	for _, row := range f.Rows {
		id := fmt.Sprintf("%s-%s-%d", row.Suite, row.Workload, row.Key().Flows)
		want[id]++
		if row.Status == result.StatusSkipped {
			skipped[id]++
		}
	}
	for id, n := range skipped {
		if n < want[id] {
			want[id] -= n
		}
	}
	for set, n := range want {
		testkit.Check(t, m.Rows[set] == n, "%d rows of %s in the page, %d in the file", m.Rows[set], set, n)
	}
}
