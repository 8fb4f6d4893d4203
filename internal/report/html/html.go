// SPDX-License-Identifier: Apache-2.0

// Package html writes reports as pages.
package html

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"mustang/internal/report"
	"mustang/internal/result"
)

//go:embed page.gohtml
var pageTemplate string

//go:embed page.css
var pageStyle string

// The page's JavaScript, which make page builds.
//
//go:embed bundle
var bundle embed.FS

// Script returns the page's JavaScript; empty if mustang was built without it (make page).
func Script() (string, error) {
	text, err := bundle.ReadFile("bundle/page.js")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the page's script: %w", err)
	}
	return string(text), nil
}

// policy returns the page's content security policy: it may run that script, and load nothing.
func policy(script string) string {
	run := ""
	if script != "" {
		sum := sha256.Sum256([]byte(script))
		run = "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; "
	}
	return "default-src 'none'; " + run + "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
}

// Write writes r to w as one HTML page that loads nothing else. Styles, charts and the script are inline; a content
// security policy forbids any request and any other script. The page is complete without the script, which sorts,
// filters and copies. Write returns the first error of w.
func Write(w io.Writer, r *report.Report) error {
	script, err := Script()
	if err != nil {
		return err
	}
	tmpl, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(pageStyle) },
		"draw":  draw,
		"steps": drawSteps, "figure": report.StepFigure,
		"view":  newTable,
		"lines": func(text string) []string { return strings.Split(text, "\n") },
		"next":  func(i int) int { return i + 1 },
		// html/template would change the script's text, and the policy has the hash of it.
		"script": func() template.HTML {
			if script == "" {
				return ""
			}
			return template.HTML("<script>" + script + "</script>\n")
		},
		"allows": func() string { return policy(script) },
		"page": func(s report.Suite, r *report.Report) suitePage {
			return suitePage{s, len(r.Suites) > 1}
		},
		"prose": prose,
	}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("make report: %w", err)
	}
	if err := tmpl.Execute(w, r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func drawSteps(p report.Path) (template.HTML, error) {
	var b strings.Builder
	p.Title = ""
	err := report.Draw(&b, p)
	// which only files need
	return template.HTML(strings.Replace(b.String(), ` xmlns="http://www.w3.org/2000/svg"`, "", 1)), err
}

// suitePage is a suite's part of the page, which may be one of several.
type suitePage struct {
	report.Suite
	Several bool
}

// table is a table of the page. Its rows link to their paths in the part of the suite with that anchor.
type table struct {
	report.Table
	Suite string
}

// newTable leaves out details, and the rows that were skipped unless all were: the page has their reasons elsewhere.
func newTable(suite string, t report.Table) table {
	var shown []int
	for i, l := range t.Lines {
		if l.Status != result.StatusSkipped {
			shown = append(shown, i)
		}
	}
	if len(shown) > 0 {
		t = t.Keep(shown)
	}
	detail := func(c report.Column) bool { return c.Rank >= report.RankDetail }
	t.Columns = slices.DeleteFunc(slices.Clone(t.Columns), detail)
	return table{t, suite}
}

// command matches a command of mustang with its flags, or a flag with a number, joined with plain spaces or others.
var command = func() *regexp.Regexp {
	const suite, flag = `(?:_[a-z][a-z0-9-]*)`, `(?:_--[a-z0-9-]+(?:_[0-9][0-9a-z]*)?)`
	all := `mustang_bench(?:` + flag + `+` + suite + `?` + flag + `*|` + suite + flag + `+)|\B--(?:time|rounds)_[0-9]+m?`
	return regexp.MustCompile(strings.ReplaceAll(all, "_", `[ \x{a0}]`))
}()

// prose marks commands in a sentence as code, which the page does not break.
func prose(s string) template.HTML {
	return template.HTML(command.ReplaceAllStringFunc(template.HTMLEscapeString(s), func(found string) string {
		return "<code>" + strings.ReplaceAll(found, "\u00a0", " ") + "</code>"
	}))
}
