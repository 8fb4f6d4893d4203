// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"html/template"
	"strings"
)

//go:embed page.gohtml
var pageTemplate string

//go:embed page.css
var pageStyle string

// page is what the template shows.
type page struct {
	Title    string
	Machine  string
	When     string
	Style    template.CSS
	Warnings []string
	Empty    bool
	Answers  []answer
	Matrices []matrix
	Wide     bool // whether the matrices are too wide to stand side by side
	Charts   []chartGroup
	Tables   []htmlTable
	Ratios   []htmlTable
	Spreads  []string
	Ratio    string // what a ratio is
	Facts    []factGroup
	Command  string
	Evidence []evidenceTable
	Troubles []trouble
}

// chartGroup is a part of the page with charts.
type chartGroup struct {
	ID, Title, Text string
	Figures         []figure
}

// factGroup is a list of facts under a heading.
type factGroup struct {
	Title string
	Facts []fact
}

// newPage gathers all that the page shows.
func newPage(v *view) page {
	run := v.file.Run
	p := page{
		Title:    clean(run.Suite),
		Machine:  v.machineLine(),
		When:     stamp(run.Started),
		Style:    template.CSS(pageStyle),
		Warnings: v.warnings(),
		Empty:    len(v.sets) == 0,
		Answers:  v.answers(),
		Charts:   v.charts(),
		Facts:    []factGroup{{"Machine", v.machine()}, {"Settings", v.settings()}, {"Method", v.method()}},
		Command:  v.command(),
		Troubles: v.troubles(),
		Ratio:    "Each ratio is taken within a round, where both rows ran close to each other, so that slow drift of the machine cancels out.",
	}
	if run.Counted() {
		p.Ratio = "Each ratio is one of instructions, taken within a round: above one, the first row takes more of them than the second."
	}
	for i := range p.Answers {
		p.Answers[i].Fastest = upperFirst(p.Answers[i].Fastest)
	}
	for _, s := range v.sets {
		if m := s.matrix(); len(m.Rows) > 0 {
			p.Matrices = append(p.Matrices, m)
			p.Wide = p.Wide || len(m.Vias) > 3
		}
		p.Tables = append(p.Tables, s.table())
		if len(s.comparisons) > 0 {
			p.Ratios = append(p.Ratios, s.comparisonTable())
		}
		p.Spreads = append(p.Spreads, s.spreadSentence())
		p.Evidence = append(p.Evidence, s.evidenceTable())
	}
	return p
}

// charts makes the parts with charts, leaving out those with nothing to show.
func (v *view) charts() []chartGroup {
	face := newTypeface()
	rates := chartGroup{ID: "rates", Title: "Rates and latency"}
	if v.file.Run.Counted() {
		rates.Title = "Instructions"
	}
	costs := chartGroup{ID: "costs", Title: "What a cluster IP costs"}
	cpu := chartGroup{ID: "cpu", Title: "CPU time per unit", Text: "With few processors this is the steadier figure: a rate also depends on how well client and server happen to share the machine."}
	for _, s := range v.sets {
		rates.add(s.rateFigure(face))
		costs.add(s.costFigure(face))
		cpu.add(s.cpuFigure(face))
	}
	for _, s := range v.sets {
		rates.add(s.latencyFigure(face))
	}
	var out []chartGroup
	for _, g := range []chartGroup{rates, costs, cpu} {
		if len(g.Figures) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// add appends a figure unless it is empty.
func (g *chartGroup) add(f figure) {
	if f.SVG != "" {
		g.Figures = append(g.Figures, f)
	}
}

// upperFirst is a sentence's start, but for names of link modes.
func upperFirst(s string) string {
	if strings.HasPrefix(s, "no ") {
		return "N" + s[1:]
	}
	return s
}

// parseTemplate parses the page, which escapes all that it shows.
func parseTemplate() (*template.Template, error) {
	return template.New("report").Parse(pageTemplate)
}
