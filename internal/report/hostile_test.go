// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	xhtml "golang.org/x/net/html"

	"mustang/internal/report/render"
	"mustang/internal/result"
)

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

// hostile are strings that a page or a terminal must not obey.
func hostile() []string {
	return []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'; DROP TABLE`, "a\x1b[2Jb\rc\nd\te",
		"</style></svg><b>",
		"{{.Title}}", "\u202eevil\u2066", "#010001", "&lt;b&gt;", "\xff\xfe", strings.Repeat("W", 300),
	}
}

// TestHostileStrings puts such strings in every field: the page gains no
// element, and the terminal gets no control character.
func TestHostileStrings(t *testing.T) {
	want := map[string]int{}
	for _, n := range nodes(t, pageOf(t, poisoned(sample(t, "made-up"), "plain"))) {
		want[n.Data] += element(n)
	}
	for _, s := range hostile() {
		f := poisoned(sample(t, "made-up"), s)
		got := map[string]int{}
		page := pageOf(t, f)
		for _, n := range nodes(t, page) {
			got[n.Data] += element(n)
		}
		for name := range got {
			if got[name] > want[name] && name != "text" {
				t.Errorf("%q made %d elements <%s>, without it there are %d", s, got[name], name, want[name])
			}
		}
		special := func(r rune) bool { return r < ' ' || r > '~' }
		if !strings.ContainsFunc(s, special) && !strings.Contains(wordsOf(page), s) {
			t.Errorf("%q is not in the page as text", s)
		}
		for _, o := range []render.Options{{}, {Wide: true}, {Width: 80}} {
			out := textOf(t, f, o)
			if strings.ContainsAny(out, "\x1b\r\t\u202e\u2066") || !utf8.ValidString(out) {
				t.Errorf("%q reached the terminal", s)
			}
		}
	}
}

// TestHostileSuites does the same with the rows of a suite that has all parts.
func TestHostileSuites(t *testing.T) {
	poison := func(s string) result.File {
		plain, f := oneSuite(t, "latency"), poisoned(oneSuite(t, "latency"), s)
		for i := range f.Rows {
			f.Rows[i].Suite, f.Rows[i].Evidence.Hooks = plain.Rows[i].Suite, []string{s}
			f.Rows[i].ID = plain.Rows[i].ID + "/" + s
		}
		f.Suites, f.Run.Traces[0].Suite = plain.Suites, plain.Suites[0].Name
		f.Suites[0].Reference += "/" + s
		for i := range f.Run.Comparisons {
			f.Run.Comparisons[i].Suite = plain.Suites[0].Name
			f.Run.Comparisons[i].Numerator, f.Run.Comparisons[i].Denominator = plain.Run.Comparisons[i].Numerator+"/"+
				s, plain.Run.Comparisons[i].Denominator+"/"+s
		}
		return f
	}
	want := strings.Count(pageOf(t, poison("plain")), "<")
	for _, s := range hostile() {
		f := poison(s)
		if got := strings.Count(pageOf(t, f), "<"); got > want { // fewer where long names leave an axis less room
			t.Errorf("%q: %d tags, without it %d", s, got, want)
		}
		if out := textOf(t, f, render.Options{Wide: true, Width: 80}) + briefOf(t, f, 80); strings.ContainsAny(out,
			"\x1b\r\t\u202e\u2066") || !utf8.ValidString(out) {
			t.Errorf("%q reached the terminal", s)
		}
	}
}

// element counts element nodes.
func element(n *xhtml.Node) int {
	if n.Type == xhtml.ElementNode {
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
	f.Suites = []result.Suite{f.Suites[0]}
	f.Suites[0].Name, f.Suites[0].Question = s, s
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Suite, row.Link, row.Variant, row.Engine, row.Unit, row.CPUUnit, row.Note = s, s, s, s, s, s, s
		row.ID = s + "/" + row.ID
		row.CPUSplit, row.BPFNanos = &result.CPUSplit{UserUS: 1}, []result.ProgramTime{{Program: s, RunsPerUnit: 1,
			NanosPerRun: 1}}
		row.Evidence = result.Evidence{
			Devices: []result.DeviceCount{{Host: s, Name: s}}, ProgramRuns: map[string]uint64{s: 1},
			Client: result.Addresses{Local: s, Peer: s}, Findings: []string{s},
		}
		if row.Status != result.StatusOK {
			row.Reason = s
		}
	}
	r.Traces = []result.Trace{{Suite: s, ID: s, Transactions: 30, Alike: 20, UntracedNS: 100, Omitted: []string{s},
		Steps: []result.Step{
			{Direction: "request", Class: s, Kind: "transmit", Place: s, Device: s, Name: s, Time: 60},
			{Direction: "reply", Class: s, Kind: "run", Place: "host", Device: s, Name: s, Time: 40},
		}}}
	for i := range r.Comparisons {
		c := &r.Comparisons[i]
		c.Suite, c.Name, c.Numerator, c.Denominator = s, s, s+"/"+c.Numerator, s+"/"+c.Denominator
	}
	return f
}
