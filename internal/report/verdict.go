// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// verdict sums the workload up in one short line.
func (t *workloadTable) verdict() string {
	return format.KeepTogether(t.verdictWords())
}

// verdictWords names the best row, or how many share the first place.
func (t *workloadTable) verdictWords() string {
	switch {
	case t.suite.Answer[0] == result.AnswerTally:
		return t.tally()
	case t.suite.statesPairs():
		return strings.Join(t.stated(), " ")
	}
	contenders := t.contenders(false)
	s := t.standing(contenders)
	one, _, short := t.nouns()
	several := short + "s"
	where := ""
	if t.suite.grid() {
		where = format.UpperFirst(format.Clean(t.decisive().Caption)) + ". "
	}
	switch n, of := len(s.best)+len(s.apart), len(contenders)-len(s.few); {
	case len(s.best) == 0:
		return "No " + one + " has a figure."
	case len(contenders) == 1:
		return where + fmt.Sprintf("Only %s has a figure, %s.", s.best[0].name, t.figure(s.best[0]))
	case !s.judged():
		return where + fmt.Sprintf("%s has the %s figure, %s; too few rounds to say more.", s.best[0].name, t.wording.extreme, t.figure(s.best[0]))
	case n == 1:
		return where + fmt.Sprintf("%s %s of %d %s: %s.", s.best[0].name, t.wording.best, of, several, t.own(s.best[0])) + s.fewRounds()
	case n == of:
		return where + fmt.Sprintf("No single %s: this run cannot tell the %d %s apart.", t.winnerNoun(), n, several) + s.fewRounds()
	default:
		return where + fmt.Sprintf("No single %s: this run cannot tell %d of %d %s apart, first %s, %s.",
			t.winnerNoun(), n, of, several, s.best[0].name, t.own(s.best[0])) + s.fewRounds()
	}
}

// winnerNoun names what a workload's best row would be.
func (t *workloadTable) winnerNoun() string {
	if strings.HasSuffix(t.wording.best, "fastest") {
		return "fastest"
	}
	return "winner"
}

// own is a row's figure, or where rows are compared in time what it adds to the reference's.
func (t *workloadTable) own(e *entry) string {
	d, ok := t.toReference(e)
	if !ok || !t.inTime() {
		return t.figure(e)
	}
	base := t.meanLatency(t.reference)
	cell := t.added(d)
	return fmt.Sprintf("%s\u00a0µs added to the %s\u00a0µs of %s", cell.Text+cell.Mark, format.Number(base, format.FewDecimals(base)), t.reference.name)
}

// statementTable has a line for each pair of the suite's statements; nil if none has figures.
func (t *workloadTable) statementTable() *Table {
	columns := []Column{
		{Head: []string{"comparison"}}, {Head: []string{"pair"}}, {Head: []string{"ratio"}, Right: true, Marked: true},
		{Head: []string{"95\u00a0% interval"}, Right: true}, {Head: []string{"found"}},
	}
	out := &Table{Title: t.name + ", stated pairs"}
	for _, st := range t.suite.Statements {
		for i, d := range t.differences(st) {
			interval := format.None
			places := ratioPlaces(d.difference)
			if d.ci != nil {
				interval = format.ShortRatio(d.ci[0], places) + " to " + format.ShortRatio(d.ci[1], places)
			}
			found := t.wording.describe(d.verdict, d.ratio)
			for j, cell := range []Cell{
				{Text: format.Clean(st.Caption)}, {Text: d.label}, {Text: format.ShortRatio(d.ratio, places), Mark: strings.TrimSpace(d.verdict.mark())},
				{Text: interval}, {Text: found},
			} {
				columns[j].Cells = append(columns[j].Cells, cell)
			}
			out.Lines = append(out.Lines, Line{Status: result.StatusOK, Color: d.color, First: i == 0})
		}
	}
	if len(out.Lines) == 0 {
		return nil
	}
	out.Columns = columns
	out.Notes = out.legend(t.turns())
	return out
}
