// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	xhtml "golang.org/x/net/html"

	"mustang/internal/report/render"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

func elements(page string) map[string]int {
	n := map[string]int{}
	for z := xhtml.NewTokenizer(strings.NewReader(page)); ; {
		switch z.Next() {
		case xhtml.ErrorToken:
			return n
		case xhtml.StartTagToken, xhtml.SelfClosingTagToken:
			name, _ := z.TagName()
			n[string(name)]++
		}
	}
}

// hostile are strings that a page or a terminal must not obey.
func hostile() []string {
	return []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'; DROP TABLE`, "a\x1b[2Jb\rc\nd\te",
		"</style></svg><b>",
		"{{.Title}}", "\u202eevil\u2066", "#010001", "&lt;b&gt;", "\xff\xfe", strings.Repeat("W", 300),
	}
}

// TestHostileStrings puts such strings in every field of a matrix and of a list that has all parts. The page gains
// no element, and the terminal gets no control character.
func TestHostileStrings(t *testing.T) {
	for name, file := range map[string]func() result.File{
		"matrix": func() result.File { return sample(t, "made-up") },
		"list":   func() result.File { return oneSuite(t, "latency") },
	} {
		want := elements(pageOf(t, poisoned(file(), "plain")))
		for _, s := range hostile() {
			f := poisoned(file(), s)
			page := pageOf(t, f)
			for element, n := range elements(page) {
				if n > want[element] && element != "text" { // a long name leaves an axis another room
					t.Errorf("%s: %q made %d elements <%s>, without it there are %d", name, s, n, element, want[element])
				}
			}
			special := func(r rune) bool { return r < ' ' || r > '~' }
			testkit.Check(t, strings.ContainsFunc(s, special) || strings.Contains(wordsOf(page), s),
				"%s: %q is not in the page as text", name, s)
			out := briefOf(t, f, 80)
			for _, o := range []render.Options{{}, {Wide: true}, {Width: 80}} {
				out += textOf(t, f, o)
			}
			testkit.Check(t, !strings.ContainsAny(out, "\x1b\r\t\u202e\u2066") && utf8.ValidString(out),
				"%s: %q reached the terminal", name, s)
		}
	}
}

func poisoned(f result.File, s string) result.File {
	r := &f.Run
	r.Suite, r.Kernel, r.Machine.CPUModel, r.Machine.Arch, r.Machine.Virtualisation = s, s, s, s, s
	r.Versions, r.Settings, r.Offloads = map[string]string{s: s}, map[string]string{s: s}, map[string]string{s: s}
	r.Pinning, r.Notes = map[string]int{s: 1}, []string{s}
	f.Suites = []result.Suite{f.Suites[0]}
	f.Suites[0].Name, f.Suites[0].Question = s, s
	f.Suites[0].Reference = s + "/" + f.Suites[0].Reference
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Suite, row.Link, row.Variant, row.Engine, row.Unit, row.CPUUnit, row.Note = s, s, s, s, s, s, s
		row.ID = s + "/" + row.ID
		row.CPUSplit, row.BPFNanos = &result.CPUSplit{UserUS: 1}, []result.ProgramTime{{Program: s, RunsPerUnit: 1,
			NanosPerRun: 1}}
		row.Evidence = result.Evidence{
			Devices: []result.DeviceCount{{Host: s, Name: s}}, ProgramRuns: map[string]uint64{s: 1},
			Client: result.Addresses{Local: s, Peer: s}, Findings: []string{s}, Hooks: []string{s},
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
