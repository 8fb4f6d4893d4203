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

// answers prints the answer in words.
func (p *printer) answers() {
	if len(p.view.sets) == 0 {
		p.line("")
		p.line("This file holds no rows.")
		return
	}
	for _, a := range p.view.answers() {
		p.line("")
		p.paragraph(a.Name+": "+a.Fastest, 0)
		p.paragraph(a.Cost, 2)
	}
}

// rows prints the rows of a workload.
func (p *printer) rows(s *set) {
	p.heading(s.name + " (" + s.plain + ")")
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
func (s *set) legend() string {
	text := ""
	seen := map[verdict]bool{}
	for _, e := range s.entries {
		if e.cost != nil {
			seen[s.spread.judge(*e.cost)] = true
		}
	}
	if seen[tied] {
		text += "~ no difference found. "
	}
	if seen[tooFew] {
		text += "? too few rounds to tell. "
	}
	return strings.TrimSpace(text)
}

// comparisons prints the ratios and the spread.
func (p *printer) comparisons() {
	for _, s := range p.view.sets {
		if len(s.comparisons) > 0 {
			p.heading("Comparisons, " + lowerFirst(s.name) + " (ratio within each round)")
			p.grid(s.comparisonColumns(), nil)
		}
	}
	if len(p.view.sets) > 0 {
		p.line("")
	}
	for _, s := range p.view.sets {
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
	list := p.view.troubles()
	if len(list) == 0 {
		return
	}
	p.heading("Skipped and failed")
	for _, t := range list {
		p.paragraph(t.Status+" "+t.Rows+": "+t.Reason, 2)
	}
}
