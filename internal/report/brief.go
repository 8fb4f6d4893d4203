// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Brief is a suite's answer: a verdict for each workload, and tables with the figures.
type Brief struct {
	// Sentences are the verdicts, and how certain they are.
	Sentences []string
	// Tables are the figures of the rows, the best first; of links also what Services cost.
	Tables []Table
	// NotMeasured lists the rows that were not measured by reason, empty if all were.
	NotMeasured string
	// Failed has a line for each reason.
	Failed []string
}

// brief makes the answer.
func (st *suiteTables) brief() Brief {
	b := Brief{NotMeasured: st.notMeasured()}
	for _, t := range st.workloads {
		b.Sentences = append(b.Sentences, t.verdict())
	}
	b.Sentences = append(b.Sentences, st.serviceLines()...)
	if text := st.certainty(); text != "" {
		b.Sentences = append(b.Sentences, text)
	}
	if st.grid() {
		b.Tables = []Table{st.gridBrief()}
	} else {
		b.Tables = []Table{st.briefTable()}
	}
	if costs := st.costTable(); len(costs.Lines) > 0 {
		b.Tables = append(b.Tables, costs)
	}
	for _, f := range st.failures() {
		if f.Status == result.StatusFailed {
			b.Failed = append(b.Failed, someOf(strings.Split(f.Rows, ", "), 2)+": "+f.Reason)
		}
	}
	return b
}

// compared are the rows of the brief table: of a matrix its links, else all that have a figure.
func (t *workloadTable) compared() []*entry {
	var out []*entry
	switch {
	case t.suite.answersPairs() && t.suite.list():
		return t.measured()
	case t.suite.list():
		return t.ranked(t.measured())
	}
	for _, c := range t.contest {
		out = append(out, c.entry)
	}
	return out
}

// base is the row that the others are compared with: the reference, or the best one; nil if there is none.
func (t *workloadTable) base() *entry {
	switch {
	case t.reference != nil && t.reference.ok():
		return t.reference
	case len(t.contest) > 0 && !t.suite.answersPairs():
		return t.rival
	}
	return nil
}

// ratio compares a row of the brief table with the base, or the other row of its stated pair; false if there is none.
func (t *workloadTable) ratio(e *entry) (d difference, ok bool) {
	if t.suite.answersPairs() {
		for _, s := range t.suite.answered() {
			for _, p := range s.Pairs {
				if of := t.byID[p.Denominator]; p.Numerator == e.ID && of != nil && of.ok() {
					return t.difference(e, of), true
				}
			}
		}
		return d, false
	}
	if b := t.base(); b != nil && b != e {
		d = t.timed(t.difference(e, b))
	}
	return d, d.ratio > 0
}

// inTime reports whether rows compare with the reference in time per transaction.
func (t *workloadTable) inTime() bool {
	return t.suite.TransactionTime && t.reference != nil && !t.wording.counted &&
		(t.workload == result.WorkloadTCPRR || t.workload == result.WorkloadTCPCRR || t.workload == result.WorkloadUDPRR)
}

// timed is a difference of rates as one of times, where rows compare in time.
func (t *workloadTable) timed(d difference) difference {
	if t.inTime() {
		return d.turned()
	}
	return d
}

// briefTable has a line for each row that has a figure, and for each workload its figure and its ratio.
func (st *suiteTables) briefTable() Table {
	var order []string
	named := map[string]bool{} // which the verdicts name
	for _, t := range st.workloads {
		for _, e := range t.compared() {
			if !slices.Contains(order, e.name) {
				order = append(order, e.name)
			}
		}
		for i, c := range t.contest {
			named[c.name] = named[c.name] || i == 0 || c.verdict == tied
		}
	}
	out := Table{Title: "Summary", Columns: []Column{{Head: []string{"", "way"}}}}
	for _, name := range order {
		out.Columns[0].Cells = append(out.Columns[0].Cells, Cell{Text: name})
		out.Lines = append(out.Lines, Line{Status: result.StatusOK, Rank: map[bool]int{true: 0, false: 1}[named[name]]})
	}
	for i, t := range st.workloads {
		for j, c := range t.briefColumns(order) {
			c.Right, c.Rank, c.Joined = true, 1+i, j > 0
			out.Columns = append(out.Columns, c)
		}
	}
	if st.answersPairs() {
		var captions []string
		for _, s := range st.answered() {
			captions = append(captions, clean(s.Caption))
		}
		out.Notes = []string{"ratio, round by round: " + strings.Join(captions, "; ") + "."}
	}
	out.Notes = append(out.Notes, out.legend(st.workloads[0].turns())...)
	return out
}

// briefColumns are a workload's columns in the brief table: the figures, and the ratios to the base or the time that
// rows add to it.
func (t *workloadTable) briefColumns(order []string) []Column {
	unit, base := shortUnit(t.unit), t.base()
	switch {
	case t.inTime():
		unit = "µs"
	case t.unit == result.UnitTransactions:
		unit = "1000/s"
	}
	columns := []Column{{Head: []string{t.briefHead(), unit}}, {Head: []string{"", "ratio"}, Marked: true}}
	switch {
	case base == nil && !t.suite.answersPairs():
		columns = columns[:1]
	case base != nil && t.inTime():
		columns[1].Head = []string{"added", "µs"}
	case base != nil:
		columns[1].Head = []string{"ratio to", base.name}
	}
	byName := map[string]*entry{}
	for _, e := range t.compared() {
		byName[e.name] = e
	}
	for _, name := range order {
		cells := []Cell{{Text: None}, {Text: None}}
		if e := byName[name]; e != nil {
			cells = []Cell{t.briefFigure(e), t.briefRatio(e)}
		}
		for i := range columns {
			columns[i].Cells = append(columns[i].Cells, cells[i])
		}
	}
	return columns
}

// briefRatio prints a row's ratio, or the time that it adds to the base.
func (t *workloadTable) briefRatio(e *entry) Cell {
	d, ok := t.ratio(e)
	switch base := t.base(); {
	case e == base && t.inTime():
		return Cell{Text: "0"}
	case e == base:
		return Cell{Text: "1"}
	case !ok:
		return Cell{Text: None}
	case t.inTime():
		of := t.meanLatency(base)
		text := Number(of*(d.ratio-1), decimals(of)-1) + d.verdict.mark()
		if d.ci != nil {
			text += fmt.Sprintf(" (%s to %s)", Number(of*(d.ci[0]-1), decimals(of)-1), Number(of*(d.ci[1]-1), decimals(of)-1))
		}
		return Cell{Text: text}
	}
	return Cell{Text: d.ratioText(), Mark: d.verdict.mark()}
}

// briefFigure prints a row's figure with three significant digits, and its loss if that is large.
func (t *workloadTable) briefFigure(e *entry) Cell {
	v := e.figure
	switch {
	case t.inTime():
		v = t.meanLatency(e)
	case t.unit == result.UnitTransactions:
		v /= 1000
	}
	text := short(v)
	if e.lossy() {
		text += ", " + percentOf(e.LostShare) + " lost"
	}
	return Cell{Text: text}
}

// briefHead names the workload above a column.
func (t *workloadTable) briefHead() string {
	short := t.names.Short
	if t.flows > 1 {
		short += fmt.Sprintf(" ×%d", t.flows)
	}
	switch {
	case t.setup.Reverse:
		short += " back"
	case t.setup.Paced():
		short = "under load"
	}
	return short
}
