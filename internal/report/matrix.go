// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"slices"
	"strings"

	"mustang/internal/result"
)

// matrix sets connections against the pod IP and the ways of cluster IP.
type matrix struct {
	Name string
	Unit string
	Vias []string // ways of cluster IP
	Rows []matrixRow
	Note string // the connections of which all was skipped, which have no row
}

// matrixRow is one connection: the pod IP's cell, then one for each way.
type matrixRow struct {
	Connection string
	Cells      []matrixCell
}

// matrixCell is a median, or why there is none.
type matrixCell struct {
	Text  string
	Class string
}

// matrix makes the summary of a workload.
func (s *set) matrix() matrix {
	m := matrix{Name: s.name, Unit: s.unit}
	var vias []string
	var entries []*entry
	for _, e := range s.entries {
		if e.baseline || e.repeat || e.Target != result.TargetPodIP && e.Target != result.TargetClusterIP {
			continue
		}
		entries = append(entries, e)
		if e.Target == result.TargetClusterIP && !slices.Contains(vias, e.Via) {
			vias = append(vias, e.Via)
		}
	}
	slices.SortFunc(vias, func(a, b string) int {
		return cmp.Compare(slices.Index(viaOrder(), a), slices.Index(viaOrder(), b))
	})
	for _, via := range vias {
		m.Vias = append(m.Vias, viaTitle(via))
	}
	places := s.places()
	shown := slices.DeleteFunc(slices.Clone(entries), func(e *entry) bool { return e.Status == result.StatusSkipped })
	var skipped []string
	for _, connection := range connections(entries) {
		if len(shown) > 0 && !slices.Contains(connections(shown), connection) {
			skipped = append(skipped, connection)
			continue
		}
		row := matrixRow{Connection: connection, Cells: make([]matrixCell, 1+len(vias))}
		for i := range row.Cells {
			row.Cells[i] = matrixCell{Text: none, Class: "none"}
		}
		for _, e := range entries {
			if e.connection != connection {
				continue
			}
			i := 0
			if e.Target == result.TargetClusterIP {
				i = 1 + slices.Index(vias, e.Via)
			}
			row.Cells[i] = matrixCell{Text: e.Status, Class: e.Status}
			if e.ok() {
				row.Cells[i] = matrixCell{Text: number(e.Median, places), Class: class(e)}
			}
		}
		m.Rows = append(m.Rows, row)
	}
	if len(skipped) > 0 {
		m.Note = "Skipped: " + strings.Join(skipped, ", ") + "."
	}
	return m
}

// matrices prints a suite's summaries.
func (p *printer) matrices(su *suite) {
	if namedByID(su.name) {
		o := su.overview()
		p.heading("Summary, medians")
		p.grid(o.columns, nil)
		for _, note := range o.notes {
			p.paragraph(together(note), 2)
		}
		return
	}
	for _, s := range su.sets {
		m := s.matrix()
		if len(m.Rows) == 0 {
			continue
		}
		p.heading("Summary, " + lowerFirst(m.Name) + ", " + m.Unit)
		columns := []column{{head: []string{"", "connection"}}, {head: []string{"", "pod IP"}, right: true}}
		for i, via := range m.Vias {
			head := ""
			if i == 0 {
				head = "cluster IP by"
			}
			columns = append(columns, column{head: []string{head, via}, right: true})
		}
		for _, row := range m.Rows {
			columns[0].cells = append(columns[0].cells, row.Connection)
			for i, cell := range row.Cells {
				columns[1+i].cells = append(columns[1+i].cells, cell.Text)
			}
		}
		p.grid(columns, nil)
		if m.Note != "" {
			p.paragraph(together(m.Note), 2)
		}
	}
}
