// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// grid reports whether the suite shows its groups as lines and its series as columns.
func (st *suiteTables) grid() bool { return slices.Contains(st.Answer, result.AnswerGrid) }

// at returns the measured row of a series in a group; nil if there is none.
func (t *workloadTable) at(g result.Group, s result.Series) *entry {
	for _, id := range g.Rows {
		if e := t.byID[id]; e != nil && e.ok() && slices.Contains(s.Rows, id) {
			return e
		}
	}
	return nil
}

// inGroup returns the measured rows of a group.
func (t *workloadTable) inGroup(g result.Group) []*entry {
	return slices.DeleteFunc(t.measured(), func(e *entry) bool { return !slices.Contains(g.Rows, e.ID) })
}

// decisive is the group whose best row is the best: the last of those with the most rows.
func (t *workloadTable) decisive() result.Group {
	var out result.Group
	most := 0
	for _, g := range t.suite.Groups {
		if n := len(t.inGroup(g)); n >= most {
			out, most = g, n
		}
	}
	return out
}

// gridTable has a line for each group with the figure of each series and the best of them, and a line for each group
// after the first with the ratios to that.
func (t *workloadTable) gridTable() *Table {
	groups := slices.DeleteFunc(slices.Clone(t.suite.Groups), func(g result.Group) bool { return len(t.inGroup(g)) == 0 })
	later := groups[min(1, len(groups)):]
	captions, best := Column{Head: []string{""}}, Column{Head: []string{"best"}, Rank: 1}
	for _, g := range groups {
		captions.Cells = append(captions.Cells, Cell{Text: clean(g.Caption)})
		best.Cells = append(best.Cells, Cell{Text: t.bestOf(g)})
	}
	for _, g := range later {
		text := clean(g.Caption) + " / " + LowerFirst(clean(groups[0].Caption))
		captions.Cells, best.Cells = append(captions.Cells, Cell{Text: text}), append(best.Cells, Cell{})
	}
	out := &Table{Title: t.heading() + ", " + t.unit, Columns: []Column{captions}}
	for _, s := range t.suite.Series {
		c := Column{Head: []string{clean(s.Name)}, Right: true, Marked: true}
		for _, g := range groups {
			cell := Cell{Text: None}
			if e := t.at(g, s); e != nil {
				cell = Cell{Text: Number(e.Median, fewDecimals(e.Median)), Class: s.Color}
			}
			c.Cells = append(c.Cells, cell)
		}
		for _, g := range later {
			cell := Cell{Text: None}
			if few, many := t.at(groups[0], s), t.at(g, s); few != nil && many != nil {
				d := t.difference(many, few)
				cell = Cell{Text: d.ratioText(), Mark: d.verdict.mark()}
			}
			c.Cells = append(c.Cells, cell)
		}
		out.Columns = append(out.Columns, c)
	}
	out.Columns = append(out.Columns, best)
	for i := range captions.Cells {
		out.Lines = append(out.Lines, Line{Status: result.StatusOK, First: i == len(groups)})
	}
	out.Notes = out.legend(t.turns())
	var others []string
	for _, e := range t.measured() {
		if t.suite.groupOf[e.ID] == "" {
			others = append(others, e.name+" "+t.figureOf(e.figure))
		}
	}
	if len(others) > 0 {
		out.Notes = append(out.Notes, "Beside them: "+strings.Join(others, ", ")+".")
	}
	return out
}

// bestOf names the series of the best rows of a group, down to the first that is worse; empty after too few rounds.
func (t *workloadTable) bestOf(g result.Group) string {
	var names []string
	ranked := t.ranked(t.inGroup(g))
	for i, e := range ranked {
		v := t.difference(ranked[0], e).verdict
		switch {
		case i > 0 && v == tooFew:
			return ""
		case i > 0 && v != tied:
			return strings.Join(names, ", ")
		}
		names = append(names, t.kindOf(e).Name)
	}
	return strings.Join(names, ", ")
}

// gridBrief has a line for each workload with the figures of each series in its first and last group.
func (st *suiteTables) gridBrief() Table {
	out := Table{Title: "Summary", Columns: []Column{{}}}
	for _, t := range st.workloads {
		out.Columns[0].Cells = append(out.Columns[0].Cells, Cell{Text: t.briefHead() + ", " + shortUnit(t.unit)})
		out.Lines = append(out.Lines, Line{Status: result.StatusOK})
	}
	for _, s := range st.Series {
		column := Column{Head: []string{clean(s.Name)}, Right: true, Marked: true, Rank: len(out.Columns)}
		for _, t := range st.workloads {
			column.Cells = append(column.Cells, t.fromTo(s))
		}
		out.Columns = append(out.Columns, column)
	}
	out.Notes = []string{st.extent()}
	for _, t := range st.workloads {
		if cost := t.againstNone(); cost != "" {
			out.Notes = append(out.Notes, cost)
		}
	}
	out.Notes = append(out.Notes, out.legend(st.workloads[0].turns())...)
	return out
}

// extent names the first and the last group that a workload has measured.
func (st *suiteTables) extent() string {
	var captions []string
	for _, g := range st.Groups {
		if slices.ContainsFunc(st.workloads, func(t *workloadTable) bool { return len(t.inGroup(g)) > 0 }) {
			captions = append(captions, LowerFirst(clean(g.Caption)))
		}
	}
	switch len(captions) {
	case 0:
		return "Nothing was measured."
	case 1:
		return "With " + captions[0] + "."
	}
	return "From " + captions[0] + " to " + captions[len(captions)-1] + "."
}

// againstNone puts the first statement in words that compares a group with rows of none, which tells what the least
// costs; empty if there is none with a figure.
func (t *workloadTable) againstNone() string {
	for _, st := range t.suite.Statements {
		if len(st.Pairs) > 0 && t.suite.groupOf[st.Pairs[0].Numerator] != "" &&
			t.suite.groupOf[st.Pairs[0].Denominator] == "" {
			return t.pairLine(clean(st.Caption), t.pairsOf(st))
		}
	}
	return ""
}

// fromTo prints the figures of a series in its first and last group.
func (t *workloadTable) fromTo(s result.Series) Cell {
	var all []*entry
	for _, g := range t.suite.Groups {
		if e := t.at(g, s); e != nil {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return Cell{Text: None}
	}
	first, last := all[0], all[len(all)-1]
	cell := Cell{Text: Number(first.Median, fewDecimals(first.Median))}
	if first != last {
		cell.Text += " → " + Number(last.Median, fewDecimals(last.Median))
		cell.Mark = strings.TrimSpace(t.difference(last, first).verdict.mark())
	}
	return cell
}
