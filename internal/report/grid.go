// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

func (st *suite) grid() bool { return slices.Contains(st.Answer, result.AnswerGrid) }

// at returns the measured row of a series in a group, or nil.
func (t *workload) at(g result.Group, s result.Series) *entry {
	for _, id := range g.Rows {
		if e := t.byID[id]; e != nil && e.ok() && slices.Contains(s.Rows, id) {
			return e
		}
	}
	return nil
}

func (t *workload) inGroup(g result.Group) []*entry {
	return filter(t.measured(), func(e *entry) bool { return slices.Contains(g.Rows, e.ID) })
}

// decisive is the group whose best row is the best of the table: among the groups with the most rows, the last.
func (t *workload) decisive() (out result.Group) {
	most := 0
	for _, g := range t.suite.Groups {
		if n := len(t.inGroup(g)); n >= most {
			out, most = g, n
		}
	}
	return out
}

func (t *workload) gridTable() *Table {
	out := &Table{Title: t.heading() + ", " + t.unit, Columns: []Column{left(0, "")}}
	for _, s := range t.suite.Series {
		out.Columns = append(out.Columns, marked(0, s.Name))
	}
	out.Columns = append(out.Columns, left(1, "best"))
	groups := filter(t.suite.Groups, func(g result.Group) bool { return len(t.inGroup(g)) > 0 })
	add := func(caption string, g result.Group, first bool, best string, cell func(e, base *entry) Cell) {
		cells := []any{caption}
		for _, s := range t.suite.Series {
			if e, base := t.at(g, s), t.at(groups[0], s); e == nil {
				cells = append(cells, None)
			} else {
				cells = append(cells, cell(e, base))
			}
		}
		out.add(Line{Status: result.StatusOK, First: first}, append(cells, best)...)
	}
	for _, g := range groups {
		add(g.Caption, g, false, t.bestOf(g), func(e, _ *entry) Cell {
			return Cell{Text: Number(e.Median, fewDecimals(e.Median)), Class: t.kindOf(e).Color}
		})
	}
	for i, g := range groups[min(1, len(groups)):] {
		add(g.Caption+" / "+LowerFirst(groups[0].Caption), g, i == 0, "", func(e, base *entry) Cell {
			if base == nil {
				return Cell{Text: None}
			}
			return t.difference(e, base).cell()
		})
	}
	out.Notes = out.trimmed().legend(t.turns())
	others := filter(t.measured(), func(e *entry) bool { return t.suite.groupOf[e.ID] == "" })
	if len(others) > 0 {
		figures := convert(others, func(e *entry) string { return e.name + " " + t.figureOf(e.figure) })
		out.Notes = append(out.Notes, "Beside them: "+strings.Join(figures, ", ")+".")
	}
	return out
}

// bestOf names the series of the best rows of a group, down to the first that is worse; empty after too few rounds.
func (t *workload) bestOf(g result.Group) string {
	var names []string
	ranked := t.ranked(t.inGroup(g))
	for i, e := range ranked {
		if i > 0 {
			v := t.difference(ranked[0], e).verdict
			if v == tooFew {
				return ""
			}
			if v != tied {
				break
			}
		}
		names = append(names, t.kindOf(e).Name)
	}
	return strings.Join(names, ", ")
}

// gridBrief has a line for each workload with the figures of each series in its first and last group.
func (st *suite) gridBrief() Table {
	out := &Table{Title: "Summary", Columns: []Column{left(0, "")}, Notes: []string{st.extent()}}
	for i, s := range st.Series {
		out.Columns = append(out.Columns, marked(1+i, s.Name))
	}
	for _, t := range st.workloads {
		cells := convert(st.Series, func(s result.Series) any { return t.fromTo(s) })
		out.add(Line{Status: result.StatusOK}, append([]any{t.briefHead() + ", " + shortUnit(t.unit)}, cells...)...)
	}
	out.trimmed()
	costs := filter(convert(st.workloads, (*workload).againstNone), func(cost string) bool { return cost != "" })
	out.Notes = slices.Concat(out.Notes, costs, out.legend(st.workloads[0].turns()))
	return *out
}

func (st *suite) extent() string {
	measured := filter(st.Groups, func(g result.Group) bool {
		return slices.ContainsFunc(st.workloads, func(t *workload) bool { return len(t.inGroup(g)) > 0 })
	})
	switch len(measured) {
	case 0:
		return "Nothing was measured."
	case 1:
		return "With " + LowerFirst(measured[0].Caption) + "."
	}
	return "From " + LowerFirst(measured[0].Caption) + " to " + LowerFirst(measured[len(measured)-1].Caption) + "."
}

// againstNone prints the first statement that compares a group with rows outside of groups; empty without a figure.
func (t *workload) againstNone() string {
	for _, s := range t.suite.Statements {
		if len(s.Pairs) > 0 && t.suite.groupOf[s.Pairs[0].Numerator] != "" && t.suite.groupOf[s.Pairs[0].Denominator] == "" {
			if pairs := t.pairsOf(s); len(pairs) > 0 {
				return t.pairLine(s.Caption, pairs)
			}
			return ""
		}
	}
	return ""
}

func (t *workload) fromTo(s result.Series) Cell {
	all := convert(t.suite.Groups, func(g result.Group) *entry { return t.at(g, s) })
	all = filter(all, func(e *entry) bool { return e != nil })
	if len(all) == 0 {
		return Cell{Text: None}
	}
	first, last := all[0], all[len(all)-1]
	cell := Cell{Text: Number(first.Median, fewDecimals(first.Median))}
	if first != last {
		cell.Text += " → " + Number(last.Median, fewDecimals(last.Median))
		cell.Mark = t.difference(last, first).verdict.mark()
	}
	return cell
}
