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
	Suites   []suitePart
	Several  bool // whether there is more than one
	Facts    []factGroup
	Command  string
}

// suitePart is a suite's part of the page.
type suitePart struct {
	Anchor   string
	Name     string // where there are several
	Question string
	Answers  []answer
	Abreast  bool // whether the answers stand side by side
	Matrices []matrix
	Wide     bool // whether the matrices are too wide to stand side by side
	Summary  *htmlTable
	Passed   []passedTable
	Charts   []chartGroup
	Tables   []htmlTable
	Ratios   []htmlTable
	Spreads  []string
	Ratio    string // what a ratio is
	Open     bool   // whether details are open from the start
	Evidence []evidenceTable
	Troubles []trouble
}

// passedTable is what the packets of a set pass.
type passedTable struct {
	Title, Unit string
	Rows        []passage
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
		Several:  len(v.suites) > 1,
		Facts:    []factGroup{{"Machine", v.machine()}, {"Settings", v.settings()}, {"Method", v.method()}},
		Command:  v.command(),
	}
	for _, su := range v.suites {
		part := v.part(su)
		if p.Several {
			part.Name, part.Open = clean(su.name), false
		}
		p.Suites = append(p.Suites, part)
	}
	return p
}

// part gathers what the page shows of a suite.
func (v *view) part(su *suite) suitePart {
	p := suitePart{
		Anchor:   su.anchor,
		Question: su.question,
		Answers:  su.answers(),
		Charts:   su.charts(v.file.Run.Counted()),
		Troubles: v.troubles(su),
		Open:     true,
		Ratio:    "Each ratio is taken within a round, where both rows ran close to each other, so that slow drift of the machine cancels out.",
	}
	if v.file.Run.Counted() {
		p.Ratio = "Each ratio is one of instructions, taken within a round: above one, the first row takes more of them than the second."
	}
	for i := range p.Answers {
		p.Answers[i].Lead = upperFirst(p.Answers[i].Lead)
	}
	if namedByID(su.name) {
		summary := su.summaryTable()
		p.Summary = &summary
		p.Abreast = len(p.Answers) > 1
	}
	for _, s := range su.sets {
		if m := s.matrix(); p.Summary == nil && len(m.Rows) > 0 {
			p.Matrices = append(p.Matrices, m)
			p.Wide = p.Wide || len(m.Vias) > 3
		}
		if rows := s.passages(); len(rows) > 0 {
			p.Passed = append(p.Passed, passedTable{s.name, s.cpuUnit, rows})
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

// charts makes a suite's parts with charts, leaving out those with nothing to
// show.
func (su *suite) charts(counted bool) []chartGroup {
	face := newTypeface()
	rates := chartGroup{ID: "rates", Title: "Rates and latency"}
	if counted {
		rates.Title = "Instructions"
	}
	if su.name == suiteCNI {
		rates.Title = "Times of calls"
	}
	costs := chartGroup{ID: "costs", Title: "What a cluster IP costs"}
	if namedByID(su.name) {
		costs.Title = "What each way adds"
	}
	if su.name == suiteCNI {
		costs.Title = "Against the reference bridge"
	}
	cpu := chartGroup{ID: "cpu", Title: "CPU time per unit", Text: "With few processors this is the steadier figure: a rate also depends on how well client and server happen to share the machine."}
	if su.name == suiteCNI {
		cpu.Text = "Of the whole machine while the calls were made: also what the kernel does for them afterwards."
	}
	for _, s := range su.sets {
		rates.add(s.rateFigure(face))
		costs.add(s.costFigure(face))
		cpu.add(s.cpuFigure(face))
	}
	for _, s := range su.sets {
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
	for _, word := range []string{"no ", "of ", "nothing ", "too ", "slower ", "faster ", "more ", "less ", "fewer "} {
		if strings.HasPrefix(s, word) {
			return strings.ToUpper(s[:1]) + s[1:]
		}
	}
	return s
}

// parseTemplate parses the page, which escapes all that it shows.
func parseTemplate() (*template.Template, error) {
	return template.New("report").Parse(pageTemplate)
}
