// SPDX-License-Identifier: Apache-2.0

package html

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	xhtml "golang.org/x/net/html"

	"mustang/internal/report"
	"mustang/internal/result"
)

// sample reads a file of made-up figures.
func sample(t testing.TB, name string) result.File {
	t.Helper()
	f, err := result.Read("../testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// pageOf makes f's page.
func pageOf(t testing.TB, f result.File) string {
	t.Helper()
	r, err := report.New(f)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// nodes lists all nodes of a page.
func nodes(t testing.TB, page string) []*xhtml.Node {
	t.Helper()
	root, err := xhtml.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var out []*xhtml.Node
	for n := range root.Descendants() {
		out = append(out, n)
	}
	return out
}

// scriptOf is the page's JavaScript.
func scriptOf(t testing.TB) string {
	t.Helper()
	script, err := Script()
	if err != nil || len(script) < 10_000 {
		t.Fatalf("the page has no script (%d bytes, %v): run make page", len(script), err)
	}
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
	if strings.Count(page, "<script>"+script+"</script>") != 1 {
		t.Error("the page has no script, or another")
	}
	sum := sha256.Sum256([]byte(script))
	want := "default-src 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
	if !strings.Contains(xhtml.UnescapeString(page), `content="`+want+`"`) {
		t.Errorf("the page does not allow its script alone: %s", want)
	}
	page = strings.Replace(page, "<script>"+script+"</script>", "", 1)
	ids := map[string]bool{}
	for _, n := range nodes(t, page) {
		for _, a := range n.Attr {
			if a.Key == "id" {
				if ids[a.Val] {
					t.Errorf("two elements with the id %q", a.Val)
				}
				ids[a.Val] = true
			}
		}
	}
	for _, word := range []string{"http://", "https://", "url(", "@import", "@font-face", "javascript:", "<script"} {
		if strings.Contains(strings.ToLower(page), word) {
			t.Errorf("page holds %q", word)
		}
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
	if !policy {
		t.Error("no strict content security policy")
	}
}

// traced is a file with the path of a row, and with one of another suite.
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
		if !strings.Contains(section, want) {
			t.Errorf("%q is not in the section:\n%s", want, section)
		}
	}
	if n := strings.Count(section, "<details"); n != 2 {
		t.Errorf("%d folded parts, want the list and the path of this suite", n)
	}
	if page := pageOf(t, sample(t, "turns")); strings.Contains(page, `traced" id=`) {
		t.Error("a file without traces has a section of them")
	}
}
