// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mustang/internal/result"
	"mustang/internal/testkit"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a headless Chromium that ends with the test.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	requests []string
	problems []string
}

// startBrowser starts Chromium with a profile of its own and without the
// requests that it makes for itself.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	testkit.RequireTool(t, "chromium")
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	// Of itself, chromedp takes a temporary profile and removes it at the end.
	options := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	tab, closeTab := chromedp.NewContext(alloc)
	t.Cleanup(closeTab)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(tab, 20*time.Second)
		defer cancel()
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("end chromium: %v", err)
		}
	})
	b := &browser{ctx: tab}
	if err := chromedp.Listen(tab, b.listen); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	_, err1 := chromedp.Call(tab, network.Enable, network.EnableParams{})
	_, err2 := chromedp.Call(tab, runtime.Enable, cdp.Empty{})
	_, err3 := chromedp.Call(tab, log.Enable, cdp.Empty{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatalf("listen to chromium: %v", err)
	}
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

// load opens a page at a size and returns when it has loaded.
func (b *browser) load(t *testing.T, page string, width int64, scheme string) {
	t.Helper()
	b.mu.Lock()
	b.requests, b.problems = nil, nil
	b.mu.Unlock()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatalf("choose colours: %v", err)
	}
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(page)); err != nil {
		t.Fatalf("load %s: %v", page, err)
	}
}

// seen returns the requests and problems since load.
func (b *browser) seen() (requests, problems []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests, b.problems
}

// shoot takes a picture of the whole page. With MUSTANG_SCREENSHOTS it is kept
// in that directory to be looked at.
func (b *browser) shoot(t *testing.T, name string) {
	t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatalf("take a picture: %v", err)
	}
	dir := os.Getenv("MUSTANG_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		t.Fatal(err)
	}
	if len(png) < 10000 {
		t.Errorf("picture %s has %d bytes: is the page empty?", name, len(png))
	}
}

// onDisk writes f's page to a file and returns its URL.
func onDisk(t *testing.T, f result.File) string {
	t.Helper()
	return writePage(t, htmlOf(t, f))
}

// writePage writes HTML to a file and returns its URL.
func writePage(t *testing.T, html string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}
