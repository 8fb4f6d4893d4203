// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// Brief is a suite's answer in sentences and one table.
type Brief struct {
	// Sentences are the answer; of a list, one for each workload.
	Sentences []string
	// Table has a line for each link, or each row of a list, the best first.
	Table Table
	// Skipped are the rows that were not measured, by reason.
	Skipped []Skipped
	// Failed has a line for each reason.
	Failed []string
}

// brief makes the answer.
func (st *suiteTables) brief() Brief {
	b := Brief{Skipped: st.unmeasured()}
	switch {
	case !st.list():
		b.Sentences, b.Table = st.linkAnswer(), st.linkTable()
	case st.grid():
		b.Table = st.gridBrief()
	default:
		b.Table = st.briefTable()
	}
	for _, t := range st.workloads {
		if !st.list() {
			break
		}
		if st.statesPairs() {
			b.Sentences = append(b.Sentences, t.stated()...)
			continue
		}
		b.Sentences = append(b.Sentences, format.KeepTogether(t.name+": "+t.winner()))
	}
	for _, f := range st.failures() {
		if f.Status == result.StatusFailed {
			b.Failed = append(b.Failed, format.SomeOf(strings.Split(f.Rows, ", "), 2)+": "+f.Reason)
		}
	}
	return b
}

// contenders are the rows of a list that may win, the best first. A reference is none.
func (t *workloadTable) contenders() []*entry {
	return t.ranked(slices.DeleteFunc(t.measured(), func(e *entry) bool {
		return t.suite.grid() && !slices.Contains(t.decisive().Rows, e.ID) || t.suite.Answer[0] == result.AnswerReference && e == t.reference
	}))
}

// manyNames is the number of names that a sentence replaces with their count.
const manyNames = 4

// namedInWinner are the names of the best row and of those beside it that the sentence on it names, and of those of too few rounds.
func (t *workloadTable) namedInWinner() (named, few []string) {
	s := t.standing(t.contenders())
	first := func(n int, of []*entry) []string { return names(of[:min(n, len(of))]) }
	return slices.Concat(first(manyNames, s.best), first(manyNames-1, s.apart)), first(manyNames-1, s.few)
}

// winner names the best row with its figure, and some of what is tied with it.
func (t *workloadTable) winner() string {
	if t.suite.Answer[0] == result.AnswerTally {
		return t.tally()
	}
	if added := t.addedTime(); added != "" {
		return added
	}
	contenders := t.contenders()
	s := t.standing(contenders)
	one, _, _ := t.nouns()
	switch {
	case len(s.best) == 0:
		return "no " + one + " has a figure."
	case len(contenders) == 1:
		return fmt.Sprintf("only %s has a figure, %s.", s.best[0].name, t.figure(s.best[0]))
	case !s.judged():
		return fmt.Sprintf("%s has the %s figure, %s; too few rounds to say more.", s.best[0].name, t.wording.extreme, t.figure(s.best[0]))
	}
	text := fmt.Sprintf("%s %s, %s", s.best[0].name, t.wording.best, t.figure(s.best[0]))
	if len(s.best) == len(contenders) {
		return text + "; all others are tied with it."
	}
	if len(s.best) > 1 {
		text += "; tied with it: " + someNames(s.best[1:])
	}
	if len(s.apart) > 0 {
		text += "; cannot be told from it: " + someNames(s.apart)
	}
	if len(s.few) > 0 {
		text += "; too few rounds to compare: " + someNames(s.few)
	}
	return text + "."
}

// someNames lists some names, and counts the others.
func someNames(entries []*entry) string { return format.SomeOf(namedAll(entries), manyNames-1) }

// briefTable has a line for each row of a list that has a figure.
func (st *suiteTables) briefTable() Table {
	var order, first, few []string // first are those that the sentences on the workloads name, and few those of too few rounds that they name
	for _, t := range st.workloads {
		contenders := t.ranked(t.measured())
		if st.statesPairs() {
			contenders = t.measured()
		} else if len(contenders) > 0 {
			first = append(first, contenders[0].name) // where the sentence is on what is added to a reference
			named, short := t.namedInWinner()
			first, few = append(first, named...), append(few, short...)
		}
		for _, name := range names(contenders) {
			if !slices.Contains(order, name) {
				order = append(order, name)
			}
		}
	}
	out := Table{Columns: []Column{{Head: []string{""}}}}
	for _, name := range order {
		out.Columns[0].Cells = append(out.Columns[0].Cells, Cell{Text: name})
		line := Line{Status: result.StatusOK, Rank: 2}
		switch {
		case slices.Contains(first, name):
			line.Rank = 0
		case slices.Contains(few, name):
			line.Rank = 1
		}
		out.Lines = append(out.Lines, line)
	}
	for i, t := range st.workloads {
		for j, c := range t.briefColumns(order) {
			c.Right, c.Rank, c.Joined = true, 1+i, j > 0
			out.Columns = append(out.Columns, c)
		}
	}
	if legend := st.briefLegend(); legend != "" {
		out.Notes = []string{legend}
	}
	out.Signs = append(signs(st.workloads[0].turns()), Sign{"±", "±\u00a0half of the 95\u00a0% interval."}, Sign{format.None, format.None + "\u00a0none."})
	return out
}

// briefColumns are a workload's columns in the brief table: the figures, and the ratios to the reference.
func (t *workloadTable) briefColumns(order []string) []Column {
	unit := t.unit
	if unit == result.UnitTransactions {
		unit = "1000/s"
	}
	if t.inTime() {
		unit = "µs"
	}
	columns := []Column{{Head: []string{t.briefHead(), format.ShortUnit(unit)}}}
	switch {
	case t.inTime():
		columns = append(columns, Column{Head: []string{"added", "µs"}, Marked: true})
	case t.reference != nil:
		columns = append(columns, Column{Head: []string{"ratio to", t.reference.name}, Marked: true})
	case t.suite.statesPairs():
		columns = append(columns, Column{Head: []string{"", "ratio"}, Marked: true})
	}
	byName := map[string]*entry{}
	for _, e := range t.measured() {
		byName[e.name] = e
	}
	for _, name := range order {
		cells := slices.Repeat([]Cell{{Text: format.None}}, len(columns))
		if e := byName[name]; e != nil {
			cells[0] = t.briefFigure(e)
			if len(cells) > 1 {
				cells[1] = t.briefRatio(e)
			}
		}
		for i := range columns {
			columns[i].Cells = append(columns[i].Cells, cells[i])
		}
	}
	return columns
}

// briefRatio prints a row's ratio to the reference or in its stated pair, or the time that it adds.
func (t *workloadTable) briefRatio(e *entry) Cell {
	if e == t.reference {
		return Cell{Text: map[bool]string{true: "0", false: "1"}[t.inTime()]}
	}
	if d, ok := t.toReference(e); ok && t.inTime() {
		return t.added(d)
	}
	if t.reference != nil && t.reference.ok() {
		return ratioCell(t.difference(e, t.reference))
	}
	if d, ok := t.statedRatio(e); ok && t.suite.statesPairs() {
		return ratioCell(d)
	}
	return Cell{Text: format.None}
}

// ratioCell prints a ratio with its mark and half of its interval.
func ratioCell(d difference) Cell {
	places := ratioPlaces(d)
	text, mark := format.ShortRatio(d.ratio, places), d.verdict.mark()
	if d.ci != nil {
		unit := math.Pow10(-places)
		half := math.Ceil(d.half()/unit) * unit // nothing is known exactly
		text += "±" + strings.TrimPrefix(format.Number(half, places), "0")
	}
	return Cell{Text: text, Mark: mark}
}

// ratioPlaces is the number of decimal places of a ratio: three near one, where its interval
// is narrow enough for them.
func ratioPlaces(d difference) int {
	if format.FarFromOne(d.ratio) {
		return format.FewDecimals(d.ratio)
	}
	if d.ci != nil && d.half() < 0.02 {
		return 3
	}
	return 2
}

// briefFigure prints a row's figure with three significant digits, and its loss if that is large.
func (t *workloadTable) briefFigure(e *entry) Cell {
	v := e.Median
	switch {
	case t.inTime():
		v = t.meanLatency(e)
	case t.unit == result.UnitTransactions:
		v /= 1000
	}
	text := format.Number(v, format.FewDecimals(v))
	if e.lossy() {
		text += ", " + format.Percent(e.LostShare) + " lost"
	}
	return Cell{Text: text}
}

// briefHead names the workload above a column.
func (t *workloadTable) briefHead() string {
	short := map[string]string{
		result.WorkloadTCPStream: "streams", result.WorkloadUDPStream: "UDP", result.WorkloadTCPRR: "requests",
		result.WorkloadTCPCRR: "connections", result.WorkloadUDPRR: "UDP r./r.", result.WorkloadCNIAdd: "ADD", result.WorkloadCNIDel: "DEL",
		result.WorkloadFirstPacket: "1st packet", result.WorkloadFirstPacketP99: "1st p99", result.WorkloadServiceProgram: "program",
		result.WorkloadServiceChange: "change", result.WorkloadServiceMemory: "memory",
		result.WorkloadPolicyApply: "apply", result.WorkloadPolicyChange: "change",
	}[t.workload]
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

// briefLegend explains the columns of a list's brief table.
func (st *suiteTables) briefLegend() string {
	of := st.Statements
	switch {
	case !st.statesPairs() || len(of) == 0 || of[0].Subject == "":
		return ""
	case len(of) > 1:
		var captions []string
		for _, one := range of {
			captions = append(captions, format.Clean(one.Caption))
		}
		return "ratio, round by round: " + strings.Join(captions, "; ") + "."
	}
	return "ratio: " + format.Clean(of[0].Subject) + " over " + format.Clean(of[0].Object) + "."
}

// verdict sums the workload of a list up in one short line; of a matrix the suite's sentences do.
func (t *workloadTable) verdict() string {
	switch {
	case !t.suite.list():
		return ""
	case t.suite.statesPairs():
		return format.KeepTogether(strings.Join(t.stated(), " "))
	case t.suite.grid():
		return format.KeepTogether(format.UpperFirst(t.bestOf()))
	}
	return format.KeepTogether(format.UpperFirst(t.winner()))
}
