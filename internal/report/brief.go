// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

func (st *suite) brief() Brief {
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
func (t *workload) compared() []*entry {
	switch {
	case t.suite.answersPairs() && t.suite.list():
		return t.measured()
	case t.suite.list():
		return t.ranked(t.measured())
	}
	var out []*entry
	for _, c := range t.contest {
		out = append(out, c.entry)
	}
	return out
}

// base is the row that others are compared with: the reference, else the best one, else nil.
func (t *workload) base() *entry {
	switch {
	case t.reference != nil && t.reference.ok():
		return t.reference
	case !t.suite.answersPairs():
		return t.rival
	}
	return nil
}

// ratio compares a row of the brief table with the base, or with the other row of its stated pair; of ratio 0
// without either.
func (t *workload) ratio(e *entry) (d difference) {
	for _, s := range t.suite.answered() {
		for _, p := range s.Pairs {
			if of := t.byID[p.Denominator]; p.Numerator == e.ID && of != nil && of.ok() {
				return t.difference(e, of)
			}
		}
	}
	if b := t.base(); b != nil && b != e && !t.suite.answersPairs() {
		return t.timed(t.difference(e, b))
	}
	return d
}

func (t *workload) inTime() bool {
	return t.suite.TransactionTime && t.reference != nil && !t.suite.run.Counted() &&
		slices.Contains([]string{result.WorkloadTCPRR, result.WorkloadTCPCRR, result.WorkloadUDPRR}, t.Workload)
}

// timed is a difference of rates as one of times, where rows compare in time.
func (t *workload) timed(d difference) difference {
	if t.inTime() {
		return d.turned()
	}
	return d
}

func (st *suite) briefTable() Table {
	out := &Table{Title: "Summary", Columns: []Column{left(0, "", "way")}}
	var order, captions []string
	rows := map[string][]*entry{} // by name, one for each workload
	rank := map[string]int{}      // 0 for rows that the verdicts name
	for i, t := range st.workloads {
		out.Columns = append(out.Columns, t.briefColumns(1+i)...)
		for _, e := range t.compared() {
			if rows[e.name] == nil {
				order, rows[e.name], rank[e.name] = append(order, e.name), make([]*entry, len(st.workloads)), 1
			}
			rows[e.name][i] = e
		}
		for at, c := range t.contest {
			if at == 0 || c.verdict == tied {
				rank[c.name] = 0
			}
		}
	}
	for _, name := range order {
		cells := []any{name}
		for i, t := range st.workloads {
			if e := rows[name][i]; e != nil {
				cells = append(cells, t.briefFigure(e), t.briefRatio(e))
			} else {
				cells = append(cells, None, None)
			}
		}
		out.add(Line{Status: result.StatusOK, Rank: rank[name]}, cells...)
	}
	for _, s := range st.answered() {
		captions = append(captions, s.Caption)
	}
	if len(captions) > 0 {
		out.Notes = []string{"ratio, round by round: " + strings.Join(captions, "; ") + "."}
	}
	out.Notes = append(out.Notes, out.trimmed().legend(st.workloads[0].turns())...)
	return *out
}

// briefColumns are a workload's columns in the brief table: the figures, and the ratios to the base or the time that
// rows add to it.
func (t *workload) briefColumns(rank int) []Column {
	unit, ratio := shortUnit(t.unit), marked(rank, "", "ratio")
	ratio.Joined = true
	if base := t.base(); base != nil {
		ratio.Head = []string{"ratio to", base.name}
	}
	switch {
	case t.inTime():
		unit = "µs"
		if t.base() != nil {
			ratio.Head = []string{"added", "µs"}
		}
	case t.unit == result.UnitTransactions:
		unit = "1000/s"
	}
	return []Column{right(rank, t.briefHead(), unit), ratio}
}

// briefRatio prints a row's ratio, or the time that it adds to the base.
func (t *workload) briefRatio(e *entry) Cell {
	d := t.ratio(e)
	switch base := t.base(); {
	case e == base && t.inTime():
		return Cell{Text: "0"}
	case e == base:
		return Cell{Text: "1"}
	case d.ratio <= 0:
		return Cell{Text: None}
	case t.inTime():
		of := t.meanLatency(base)
		added := func(ratio float64) string { return Number(of*(ratio-1), decimals(of)-1) }
		text := added(d.ratio) + d.verdict.mark()
		if d.ci != nil {
			text += fmt.Sprintf(" (%s to %s)", added(d.ci[0]), added(d.ci[1]))
		}
		return Cell{Text: text}
	}
	return d.cell()
}

func (t *workload) briefFigure(e *entry) string {
	v := e.figure
	if t.inTime() {
		v = t.meanLatency(e)
	} else if t.unit == result.UnitTransactions {
		v /= 1000
	}
	if e.lossy() {
		return short(v) + ", " + percentOf(e.LostShare) + " lost"
	}
	return short(v)
}

func (t *workload) briefHead() string {
	if t.Setup.Paced() {
		return "under load"
	}
	short := t.names.Short
	if t.Flows > 1 {
		short += fmt.Sprintf(" ×%d", t.Flows)
	}
	if t.Setup.Reverse {
		short += " back"
	}
	return short
}
