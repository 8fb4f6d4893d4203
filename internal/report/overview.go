// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// overview has a line for each row ID with its figures under all workloads. IDs
// that were skipped everywhere are in a note, unless all were.
func (st *suiteTables) overview() *Table {
	out := &Table{ID: "summary-" + st.anchor, Title: "Figures"}
	ways, measured := st.ways(), []*entry(nil)
	var skipped []string
	for _, e := range ways {
		if st.skipped(e.ID) {
			skipped = append(skipped, e.name)
		} else {
			measured = append(measured, e)
		}
	}
	if len(measured) == 0 {
		measured, skipped = ways, nil
	}
	way := Column{Head: []string{"", "way"}}
	for i, e := range measured {
		way.Cells = append(way.Cells, Cell{Text: e.name})
		t := st.workloads[0]
		out.Lines = append(out.Lines, Line{Status: result.StatusOK, Color: t.kindOf(e).Color, First: i > 0 && t.group(e) != t.group(measured[i-1])})
	}
	out.Columns = []Column{way}
	lossy := false
	for i, t := range st.workloads {
		for _, c := range t.overviewColumns(i, len(st.workloads) == 1) {
			out.Columns = append(out.Columns, t.arrange(c, measured))
		}
		lossy = lossy || !t.lostShares().empty()
	}
	out.Notes = out.legend(st.workloads[0].turns())
	if lossy {
		out.Notes = append(out.Notes, "Rates of UDP streams count received datagrams.")
	}
	for _, note := range st.Notes {
		out.Notes = append(out.Notes, format.Clean(note))
	}
	if len(skipped) > 0 {
		out.Notes = append(out.Notes, "Skipped: "+strings.Join(skipped, ", ")+".")
	}
	return out
}

// ways returns one entry of each row ID, without repeats; in a ranked suite the best
// one first.
func (st *suiteTables) ways() []*entry {
	var out []*entry
	seen := map[string]bool{}
	add := func(entries []*entry) {
		for _, e := range entries {
			if !e.repeat && !seen[e.ID] {
				seen[e.ID] = true
				out = append(out, e)
			}
		}
	}
	if st.Ranked {
		add(st.workloads[0].ranked(st.workloads[0].measured()))
	}
	for _, t := range st.workloads {
		add(t.entries)
	}
	return out
}

// skipped reports whether an ID was skipped under all workloads.
func (st *suiteTables) skipped(id string) bool {
	for _, t := range st.workloads {
		if e := t.byID[id]; e != nil && e.Status != result.StatusSkipped {
			return false
		}
	}
	return true
}

// overviewColumns are a table's columns in the overview, where it may be the only
// one. The columns of the first workloads are the last to be left out.
func (t *workloadTable) overviewColumns(place int, only bool) []Column {
	median := t.medians()
	for i, e := range t.entries {
		if !e.ok() {
			median.Cells[i] = Cell{Text: e.Status, Class: e.Status}
		}
	}
	out := []Column{median}
	if only {
		reach := t.intervals()
		reach.Rank = 3
		out = append(out, reach)
	} else {
		out[0].Head = []string{t.columnHead, format.ShortUnit(t.unit)}
	}
	lost := t.lostShares()
	lost.Head, lost.Rank = []string{"lost of", strings.TrimSuffix(strings.TrimSuffix(t.columnHead, "s"), " stream")}, 2+place
	if only || t.suite.TransactionTime {
		out = append(out, t.means(1))
	}
	out = append(out, t.referenceColumn(2+place), lost)
	if only && t.suite.TransactionTime {
		out = append(out, t.texts(5, t.referenceInterval, "95 % interval", "of it"))
		out = append(out, slices.DeleteFunc(t.percentiles(), func(c Column) bool { return c.Wide })...)
	}
	for i := range out {
		out[i].Right = true
	}
	return withoutEmpty(out)
}

// arrange puts a column in the order of entries, which may be of another table.
func (t *workloadTable) arrange(c Column, entries []*entry) Column {
	byID := map[string]Cell{}
	for i, e := range t.entries {
		byID[e.ID] = c.Cells[i]
	}
	c.Cells = nil
	for _, e := range entries {
		cell, ok := byID[e.ID]
		if !ok {
			cell = Cell{Text: format.None}
		}
		c.Cells = append(c.Cells, cell)
	}
	return c
}

// bestFirst lists the connections of entries, that with the best pod IP first, and those without a figure of it last.
func (t *workloadTable) bestFirst(entries []*entry) []string {
	pods := slices.DeleteFunc(slices.Clone(entries), func(e *entry) bool { return e.Target != result.TargetPodIP || !e.ok() })
	return names(slices.Concat(t.ranked(pods), entries))
}

// matrix has a line for each connection, with the pod IP and the kinds of cluster IP
// as columns; nil if there is no such row. Connections that were skipped altogether
// are in a note, unless all were.
func (t *workloadTable) matrix() *Table {
	var vias []string
	var entries []*entry
	for _, e := range t.entries {
		if e.Baseline || e.repeat || e.Target != result.TargetPodIP && e.Target != result.TargetClusterIP {
			continue
		}
		entries = append(entries, e)
		if e.Target == result.TargetClusterIP && !slices.Contains(vias, e.Via) {
			vias = append(vias, e.Via)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	slices.SortFunc(vias, func(a, b string) int {
		return cmp.Compare(slices.Index(format.ViaOrder(), a), slices.Index(format.ViaOrder(), b))
	})
	out := &Table{Title: t.name, Columns: []Column{{Head: []string{"", "connection"}}, {Head: []string{"", "pod IP"}, Right: true}}}
	for i, via := range vias {
		head := []string{"", format.ViaTitle(via)}
		if i == 0 {
			head[0] = "cluster IP by"
		}
		out.Columns = append(out.Columns, Column{Head: head, Right: true})
	}
	shown, some := map[string]bool{}, false
	for _, e := range entries {
		shown[e.name] = shown[e.name] || e.Status != result.StatusSkipped
		some = some || shown[e.name]
	}
	var skipped []string
	line := map[string]int{}
	for _, name := range t.bestFirst(entries) {
		if some && !shown[name] {
			skipped = append(skipped, name)
			continue
		}
		line[name] = len(out.Lines)
		out.Lines = append(out.Lines, Line{Status: result.StatusOK})
		for i := range out.Columns {
			out.Columns[i].Cells = append(out.Columns[i].Cells, Cell{Text: format.None, Class: "none"})
		}
		out.Columns[0].Cells[line[name]] = Cell{Text: name}
	}
	places := t.places()
	for _, e := range entries {
		i, ok := line[e.name]
		if !ok {
			continue
		}
		column := 1
		if e.Target == result.TargetClusterIP {
			column = 2 + slices.Index(vias, e.Via)
		}
		cell := Cell{Text: e.Status, Class: e.Status}
		if e.ok() {
			cell = Cell{Text: format.Number(e.Median, format.Own(e.Median, places)), Class: t.kindOf(e).Color}
		}
		out.Columns[column].Cells[i] = cell
	}
	if len(skipped) > 0 {
		out.Notes = []string{format.KeepTogether("Skipped: " + strings.Join(skipped, ", ") + ".")}
	}
	return out
}
