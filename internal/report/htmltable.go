// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	"mustang/internal/result"
)

// htmlTable is a table of the page.
type htmlTable struct {
	ID, Title string
	Head      []htmlCell
	Rows      []htmlRow
	Notes     []string
}

// htmlRow is one row; Class is its kind, for the colour at its side.
type htmlRow struct {
	Class  string
	Status string
	First  bool // the first row of its connection
	Cells  []htmlCell
}

// htmlCell is a cell; Right aligns figures, and Mark is the sign behind one.
type htmlCell struct {
	Text  string
	Right bool
	Mark  string
	Class string // of a cell that says what became of its row
}

// table lays the set's rows out for the page, with all columns but those that
// the evidence shows.
func (s *set) table() htmlTable {
	t := newHTMLTable(s.anchor, s.heading(), s.columns(false))
	for i, e := range s.entries {
		t.Rows[i].Class, t.Rows[i].Status = class(e), e.Status
		t.Rows[i].First = i == 0 || s.entries[i-1].connection != e.connection
	}
	t.Notes = s.notes()
	if legend := s.legend(); legend != "" {
		t.Notes = append([]string{legend}, t.Notes...)
	}
	return t
}

// comparisonTable lays the set's comparisons out for the page.
func (s *set) comparisonTable() htmlTable {
	t := newHTMLTable("compare-"+s.anchor, s.name, s.comparisonColumns())
	for i := range t.Rows {
		t.Rows[i].First = true
		t.Rows[i].Status = result.StatusOK
	}
	return t
}

// summaryTable lays a suite's summary out for the page.
func (su *suite) summaryTable() htmlTable {
	o := su.overview()
	t := newHTMLTable("summary-"+su.anchor, "Medians", o.columns)
	for i, e := range o.entries {
		t.Rows[i].Class, t.Rows[i].Status = class(e), result.StatusOK
		t.Rows[i].First = i > 0 && su.sets[0].group(e) != su.sets[0].group(o.entries[i-1])
	}
	for i := range t.Rows {
		for j := range t.Rows[i].Cells {
			if cell := &t.Rows[i].Cells[j]; cell.Text == result.StatusFailed || cell.Text == result.StatusSkipped {
				cell.Class = cell.Text
			}
		}
	}
	t.Notes = o.notes
	return t
}

// newHTMLTable turns columns of text into rows of cells.
func newHTMLTable(id, title string, columns []column) htmlTable {
	t := htmlTable{ID: id, Title: title}
	for _, c := range columns {
		t.Head = append(t.Head, htmlCell{Text: c.title(), Right: c.right})
		marked := c.right && strings.HasSuffix(at(c.head, 0), " ")
		for i, text := range c.cells {
			if i == len(t.Rows) {
				t.Rows = append(t.Rows, htmlRow{})
			}
			cell := htmlCell{Text: text, Right: c.right}
			if end := len(text) - 1; marked && end > 0 {
				cell.Text, cell.Mark = text[:end], text[end:]
			}
			t.Rows[i].Cells = append(t.Rows[i].Cells, cell)
		}
	}
	return t
}

// evidenceTable is what was counted while a workload's rows ran.
type evidenceTable struct {
	Title string
	Unit  string
	Hooks bool // whether any row met a netfilter hook
	Rows  []evidenceRow
}

// evidenceRow is that of one row.
type evidenceRow struct {
	ID       string
	Class    string
	Softirqs string
	Devices  []string
	Programs []string
	Ends     []string
	Hooks    []string
	Findings []string
}

// evidenceTable lists the evidence of the set's rows that ran.
func (s *set) evidenceTable() evidenceTable {
	t := evidenceTable{Title: s.name, Unit: s.cpuUnit}
	for _, e := range s.entries {
		if e.Status == result.StatusSkipped {
			continue
		}
		soft := none
		if n := e.Evidence.SoftirqsPerUnit; n > 0 {
			soft = number(n, fewDecimals(n))
		}
		t.Hooks = t.Hooks || len(e.Evidence.Hooks) > 0
		t.Rows = append(t.Rows, evidenceRow{ID: clean(e.ID), Hooks: e.hooks(), Class: class(e), Softirqs: soft, Devices: e.devices(),
			Programs: e.programs(" "), Ends: e.ends(), Findings: e.findings()})
	}
	return t
}
