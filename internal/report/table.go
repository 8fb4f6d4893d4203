// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// head prints what run this is.
func (p *printer) head() {
	p.paragraph(p.view.title(), 0)
	for _, warning := range p.view.warnings() {
		p.paragraph(p.paint(ansiAmber, warning), 0)
	}
}

// suite prints a part of the report: all of it, or, where there are several and no
// wide table is wanted, the answer and the summary.
func (p *printer) suite(su *suite) {
	single := len(p.view.suites) == 1
	if single {
		p.line("")
		p.question(su.question)
	} else {
		p.line("")
		p.question(strings.TrimPrefix(clean(su.name)+": "+su.question, su.question+": "))
	}
	p.answers(su)
	if single {
		p.allRows(su)
	}
	p.matrices(su)
	for _, set := range su.sets {
		p.passages(set)
	}
	switch {
	case single:
		p.comparisons(su)
	case p.options.Wide:
		p.allRows(su)
		p.comparisons(su)
	default:
		p.line("")
		p.paragraph(su.spreadSentence(), 0)
	}
}

// question prints a suite's heading.
func (p *printer) question(text string) {
	width := textWidth
	if p.options.Width > 0 {
		width = p.options.Width
	}
	for _, line := range wrap(text, width, 0) {
		p.line(p.paint(ansiBold, line))
	}
}

// answers prints the answers in words.
func (p *printer) answers(su *suite) {
	brief := len(p.view.suites) > 1 && !p.options.Wide
	for i, a := range su.answers() {
		p.line("")
		p.paragraph(a.Name+": "+a.Lead, 0)
		if brief && i > 0 && su.sets[i].workload == su.sets[i-1].workload {
			continue // more flows of the same
		}
		for _, more := range a.More {
			p.paragraph(more, 2)
		}
	}
}

// allRows prints the rows of all workloads.
func (p *printer) allRows(su *suite) {
	for _, set := range su.sets {
		p.rows(set)
	}
}

// whereAll says where to find what was left out.
func (p *printer) whereAll() {
	if len(p.view.suites) > 1 && !p.options.Wide {
		p.line("")
		p.paragraph("Left out here: details on more streams at a time, all rows, comparisons and evidence. They are on the page that \"mustang report\" makes of this run.", 0)
	}
}

// rows prints the rows of a workload.
func (p *printer) rows(s *set) {
	p.heading(s.heading())
	p.grid(s.columns(p.options.Wide), func(i int, line string) string {
		switch s.entries[i].Status {
		case result.StatusFailed:
			return p.paint(ansiRed, line)
		case result.StatusSkipped:
			return p.paint(ansiDim, line)
		}
		return line
	})
	if legend := s.legend(); legend != "" {
		p.paragraph(legend, 2)
	}
	for _, note := range s.notes() {
		p.paragraph(note, 2)
	}
}

// notes are the remarks on rows, each once with the rows that it is on, or with
// the connection if it is on all of its rows.
func (s *set) notes() []string {
	ofConnection := map[string][]*entry{}
	rows := map[string][]*entry{}
	var order []string
	for _, e := range s.entries {
		ofConnection[e.connection] = append(ofConnection[e.connection], e)
		if e.Note == "" {
			continue
		}
		if rows[e.Note] == nil {
			order = append(order, e.Note)
		}
		rows[e.Note] = append(rows[e.Note], e)
	}
	var notes []string
	for _, note := range order {
		var names []string
		for _, e := range rows[note] {
			all := ofConnection[e.connection]
			switch {
			case len(all) < 2 || slices.ContainsFunc(all, func(other *entry) bool { return other.Note != note }):
				names = append(names, clean(e.ID))
			case e == all[0]:
				names = append(names, e.connection)
			}
		}
		notes = append(notes, strings.Join(names, ", ")+": "+clean(note))
	}
	return notes
}

// legend explains the marks that the rows bear.
func (s *set) legend() string { return marksLegend(s.marks()) }

// marks are the verdicts on the ratios that the rows show.
func (s *set) marks() map[verdict]bool {
	seen := map[verdict]bool{}
	for _, e := range s.entries {
		if e.cost != nil {
			seen[s.spread.judge(*e.cost)] = true
		}
		if d, ok := s.toReference(e); ok && !e.repeat {
			seen[d.verdict] = true
		}
	}
	return seen
}

// marksLegend explains the marks of verdicts.
func marksLegend(seen map[verdict]bool) string {
	text := ""
	if seen[tied] {
		text += "~ no difference found. "
	}
	if seen[tooFew] {
		text += "? too few rounds to tell. "
	}
	return strings.TrimSpace(text)
}

// comparisons prints the ratios and the spread.
func (p *printer) comparisons(su *suite) {
	for _, s := range su.sets {
		if len(s.comparisons) > 0 {
			p.heading("Comparisons, " + lowerFirst(s.name) + " (ratio within each round)")
			p.grid(s.comparisonColumns(), nil)
		}
	}
	p.line("")
	for _, s := range su.sets {
		p.paragraph(s.spreadSentence(), 0)
	}
}

// comparisonColumns lays out the comparisons of a workload, A/A last.
func (s *set) comparisonColumns() []column {
	name := column{head: []string{"rows"}}
	value := column{head: []string{"ratio "}, right: true}
	ci := column{head: []string{"95 % interval"}, right: true}
	rounds := column{head: []string{"rounds"}, right: true, rank: 2}
	finding := column{head: []string{"finding"}, rank: 1}
	for _, c := range s.ordered() {
		name.cells = append(name.cells, comparisonName(c))
		value.cells = append(value.cells, ratio(c.Ratio)+s.sign(c))
		ci.cells = append(ci.cells, ratioInterval(c.CI95))
		rounds.cells = append(rounds.cells, number(float64(len(c.Ratios)), 0))
		finding.cells = append(finding.cells, s.finding(c))
	}
	return []column{name, value, ci, rounds, finding}
}

// troubles prints the rows without a figure and why.
func (p *printer) troubles() {
	started := false
	for _, su := range p.view.suites {
		for _, t := range p.view.troubles(su) {
			if !started {
				p.heading("Skipped and failed")
				started = true
			}
			rows := t.Rows
			if len(p.view.suites) > 1 {
				rows = clean(su.name) + ": " + rows
			}
			p.paragraph(t.Status+" "+rows+": "+t.Reason, 2)
		}
	}
}
