// SPDX-License-Identifier: Apache-2.0

// Package html writes reports as pages.
package html

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"mustang/internal/explain/steps"
	"mustang/internal/report"
	"mustang/internal/report/chart"
)

//go:embed page.gohtml
var pageTemplate string

//go:embed page.css
var pageStyle string

// Write writes r to w as one HTML page that loads nothing else: styles and charts are
// inline, the page has no script, and a content security policy forbids any
// request. It returns the first error of w.
func Write(w io.Writer, r *report.Report) error {
	drawer := chart.NewDrawer()
	tmpl, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(pageStyle) },
		"draw": func(c report.Chart) template.HTML {
			return drawer.Draw(c, "The figures are in the tables of this page.")
		},
		"steps": drawSteps,
		"lines": lines,
		"hooks": hooks,
		"last":  func(texts []string) string { return texts[len(texts)-1] },
		"page":  func(s report.Suite, several bool) suitePage { return suitePage{s, several} },
	}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("make report: %w", err)
	}
	if err := tmpl.Execute(w, r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// drawSteps draws a path whose title stands elsewhere.
func drawSteps(p steps.Path) (template.HTML, error) {
	var b strings.Builder
	p.Title = ""
	err := steps.Draw(&b, p)
	return template.HTML(strings.Replace(b.String(), ` xmlns="http://www.w3.org/2000/svg"`, "", 1)), err // which only files need
}

// suitePage is a suite's part of the page, which may be one of several.
type suitePage struct {
	report.Suite
	Several bool
}

// WideMatrix reports whether a matrix is too wide to stand beside another.
func (s suitePage) WideMatrix() bool {
	return slices.ContainsFunc(s.Workloads, func(w report.Workload) bool { return w.Matrix != nil && len(w.Matrix.Columns) > 5 })
}

// Any reports whether any workload has the named part: "matrix", "grid", "paths", "costs".
func (s suitePage) Any(part string) bool {
	return slices.ContainsFunc(s.Workloads, func(w report.Workload) bool {
		return part == "matrix" && w.Matrix != nil || part == "grid" && w.Grid != nil || part == "paths" && len(w.Paths) > 0 || part == "costs" && w.Costs != nil
	})
}

// tableLine is a line of a table with its cells.
type tableLine struct {
	report.Line
	Cells []tableCell
}

// tableCell is a cell with what its column says of it.
type tableCell struct {
	report.Cell
	Right, Marked bool
}

// lines turns a table's columns into lines, without the columns of wide tables.
func lines(t report.Table) []tableLine {
	out := make([]tableLine, len(t.Lines))
	for i := range out {
		out[i].Line = t.Lines[i]
		for _, c := range t.Columns {
			if !c.Wide {
				out[i].Cells = append(out[i].Cells, tableCell{c.Cells[i], c.Right, c.Marked})
			}
		}
	}
	return out
}

// hooks reports whether any row met a netfilter hook.
func hooks(rows []report.Evidence) bool {
	return slices.ContainsFunc(rows, func(e report.Evidence) bool { return len(e.Hooks) > 0 })
}
