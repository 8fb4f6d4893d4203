// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"mustang/internal/result"

	"golang.org/x/net/html"
)

// fullDisk is a writer that can't.
type fullDisk struct{}

// Write implements io.Writer.
func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// zero is the time of a run that has not finished.
func zero() time.Time { return time.Time{} }

// nodes lists all nodes of a page.
func nodes(t testing.TB, page string) []*html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var out []*html.Node
	for n := range root.Descendants() {
		out = append(out, n)
	}
	return out
}

// plainText is a page's text, each piece set apart, with plain spaces.
func plainText(page string) string {
	var b strings.Builder
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case html.ErrorToken:
			return strings.Join(strings.Fields(b.String()), " ")
		case html.TextToken:
			b.WriteString(z.Token().Data + " ")
		}
	}
}

// TestPageLoadsNothing parses the page and looks for all that would make a
// browser ask for something, or run something.
func TestPageLoadsNothing(t *testing.T) {
	for name, f := range map[string]result.File{"one suite": madeUp(t), "all suites": allSuites()} {
		t.Run(name, func(t *testing.T) { checkLoadsNothing(t, htmlOf(t, f)) })
	}
}

// checkLoadsNothing finds links to anything but a part of the page itself, too.
func checkLoadsNothing(t *testing.T, page string) {
	t.Helper()
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
		if n.Type != html.ElementNode {
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
			if key == "src" || key == "href" || key == "srcset" || key == "action" || key == "data" || strings.HasPrefix(key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
			if n.Data == "meta" && a.Val == "Content-Security-Policy" {
				policy = true
			}
		}
	}
	if !policy || !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'; img-src data:"`) {
		t.Error("no strict content security policy")
	}
}

// TestChartsAreNamed checks that every chart tells a screen reader what it is.
func TestChartsAreNamed(t *testing.T) {
	charts := 0
	for _, n := range nodes(t, htmlOf(t, madeUp(t))) {
		if n.Type != html.ElementNode || n.Data != "svg" {
			continue
		}
		charts++
		attrs := map[string]string{}
		for _, a := range n.Attr {
			attrs[a.Key] = a.Val
		}
		if attrs["role"] != "img" || len(attrs["aria-label"]) < 20 || attrs["viewBox"] == "" || attrs["width"] != "" {
			t.Errorf("chart with %v", attrs)
		}
		if n.FirstChild == nil || n.FirstChild.Data != "title" {
			t.Error("chart without a title")
		}
	}
	if charts != 7 {
		t.Errorf("%d charts, want 7", charts)
	}
}

// hostile are strings that a page or a terminal must not obey.
func hostile() []string {
	return []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'; DROP TABLE`, "a\x1b[2Jb\rc\nd\te", "</style></svg><b>",
		"{{.Title}}", "\u202eevil\u2066", "#010001", "&lt;b&gt;", "\xff\xfe", strings.Repeat("W", 300),
	}
}

// TestHostileStrings puts such strings in every field: the page gains no
// element, and the terminal gets no control character.
func TestHostileStrings(t *testing.T) {
	want := map[string]int{}
	for _, n := range nodes(t, htmlOf(t, poisoned(madeUp(t), "plain"))) {
		want[n.Data] += element(n)
	}
	for _, s := range hostile() {
		f := poisoned(madeUp(t), s)
		got := map[string]int{}
		page := htmlOf(t, f)
		for _, n := range nodes(t, page) {
			got[n.Data] += element(n)
		}
		for name := range got {
			if got[name] > want[name] && name != "text" {
				t.Errorf("%q made %d elements <%s>, without it there are %d", s, got[name], name, want[name])
			}
		}
		if !strings.Contains(plainText(page), clean(s)) {
			t.Errorf("%q is not in the page as text", s)
		}
		for _, o := range []TableOptions{{}, {Wide: true}, {Width: 80}} {
			out := tableOf(t, f, o)
			if strings.ContainsAny(out, "\x1b\r\t\u202e\u2066") || !utf8.ValidString(out) {
				t.Errorf("%q reached the terminal", s)
			}
		}
	}
}

// TestHostileSuites does the same with the rows of a suite that has all parts.
func TestHostileSuites(t *testing.T) {
	poison := func(s string) result.File {
		clean, f := oneSuite(suiteLatency), poisoned(oneSuite(suiteLatency), s)
		for i := range f.Rows {
			f.Rows[i].Suite, f.Rows[i].Evidence.Hooks = clean.Rows[i].Suite, []string{s}
			f.Rows[i].ID = clean.Rows[i].ID + "/" + s
		}
		for i := range f.Run.Comparisons {
			f.Run.Comparisons[i].Numerator, f.Run.Comparisons[i].Denominator = clean.Run.Comparisons[i].Numerator+"/"+s, clean.Run.Comparisons[i].Denominator+"/"+s
		}
		return f
	}
	want := strings.Count(htmlOf(t, poison("plain")), "<")
	for _, s := range hostile() {
		f := poison(s)
		if got := strings.Count(htmlOf(t, f), "<"); got > want { // fewer where long names leave an axis less room
			t.Errorf("%q: %d tags, without it %d", s, got, want)
		}
		checkLoadsNothing(t, strings.ReplaceAll(htmlOf(t, f), clean(s), ""))
		if out := tableOf(t, f, TableOptions{Wide: true, Width: 80}); strings.ContainsAny(out, "\x1b\r\t\u202e\u2066") || !utf8.ValidString(out) {
			t.Errorf("%q reached the terminal", s)
		}
	}
}

// element counts element nodes.
func element(n *html.Node) int {
	if n.Type == html.ElementNode {
		return 1
	}
	return 0
}

// poisoned is f with s in every free text.
func poisoned(f result.File, s string) result.File {
	r := &f.Run
	r.Suite, r.Kernel, r.Machine.CPUModel, r.Machine.Arch, r.Machine.Virtualisation = s, s, s, s, s
	r.Versions, r.Settings, r.Offloads = map[string]string{s: s}, map[string]string{s: s}, map[string]string{s: s}
	r.Pinning, r.Notes = map[string]int{s: 1}, []string{s}
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Suite, row.Link, row.Variant, row.Engine, row.Unit, row.CPUUnit, row.Note = s, s, s, s, s, s, s
		row.ID = s + "/" + row.ID
		row.Evidence = result.Evidence{
			Devices: []result.DeviceCount{{Host: s, Name: s}}, ProgramRuns: map[string]uint64{s: 1},
			Client: result.Addresses{Local: s, Peer: s}, Findings: []string{s},
		}
		if row.Status != result.StatusOK {
			row.Reason = s
		}
	}
	for i := range r.Comparisons {
		c := &r.Comparisons[i]
		c.Name, c.Numerator, c.Denominator = s, s+"/"+c.Numerator, s+"/"+c.Denominator
	}
	return f
}
