// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// Brief is a suite's answer for a terminal.
type Brief struct {
	// Winners has a line for each workload.
	Winners []string
	// Tables hold the same rows, the best first, each in fewer columns than the one before: with
	// whole intervals, with their half-widths and without, or with half-widths of fewer digits.
	Tables []Table
	// Advice says in a sentence what to do.
	Advice string
	// Skipped are the rows that were not measured, by reason.
	Skipped []Skipped
	// Failed has a line for each reason.
	Failed []string
}

// brief makes the answer for a terminal.
func (st *suiteTables) brief() Brief {
	b := Brief{Advice: format.KeepTogether(st.advice())}
	for _, t := range st.workloads {
		if st.statesPairs() {
			b.Winners = append(b.Winners, t.stated()...)
		} else {
			line, _ := t.winner()
			b.Winners = append(b.Winners, line)
		}
	}
	if st.grid() {
		b.Tables = []Table{st.gridBrief()}
	}
	for style := 0; style < styles && !st.grid(); style++ {
		b.Tables = append(b.Tables, st.briefTable(style))
	}
	b.Skipped = st.unmeasured()
	for _, f := range st.failures() {
		if f.Status == result.StatusFailed {
			b.Failed = append(b.Failed, format.SomeOf(strings.Split(f.Rows, ", "), 2)+": "+f.Reason)
		}
	}
	return b
}

// contenders are the rows that may win, the best first: those with a figure, or of a matrix
// their pod IPs. A reference is none. In advice neither is what beats the reference, which
// takes another path; nor in a suite of links a row that is not called after its link.
func (t *workloadTable) contenders(advice bool) []*entry {
	return t.ranked(slices.DeleteFunc(t.measured(), func(e *entry) bool {
		if !t.suite.list() {
			return e.Target != result.TargetPodIP || e.Baseline
		}
		if t.suite.grid() && !slices.Contains(t.decisive().Rows, e.ID) {
			return true
		}
		against := t.suite.Answer[0] == result.AnswerReference && t.reference != nil && t.reference.ok()
		switch {
		case against && e == t.reference:
			return true
		case !advice:
			return false
		case against:
			v := t.difference(e, t.reference).verdict
			return (v == lower || v == higher) && !t.wording.worse(v)
		}
		return e.Baseline || t.suite.Ranked && !strings.HasPrefix(e.ID, e.Link)
	}))
}

// briefWidth is the room of a line.
const briefWidth = 100

// winner tells the workload's best row in a line, with as many of the rows beside it as fit, at most so many of each kind.
func (t *workloadTable) winner() (line string, most int) {
	for most = manyNames - 1; most >= 0; most-- {
		line = format.KeepTogether(t.name + ": " + t.winnerAmong(most))
		n := utf8.RuneCountInString(line)
		if n <= briefWidth || most == 1 && n < 2*briefWidth-10 && len(t.suite.workloads) <= 4 { // which have two lines each
			break
		}
	}
	return line, max(most, 0)
}

// namedInWinner are the names of the best row and of those beside it that the sentence on it names, and of those of too few rounds.
func (t *workloadTable) namedInWinner() (named, few []string) {
	_, most := t.winner()
	s := t.standing(t.contenders(false))
	first := func(n int, of []*entry) []string { return names(of[:min(n, len(of))]) }
	return slices.Concat(first(most+1, s.best), first(most, s.apart)), first(most, s.few)
}

// winnerAmong names the best row with its figure, and of what is tied with it at most so many names.
func (t *workloadTable) winnerAmong(most int) string {
	if t.suite.Answer[0] == result.AnswerTally {
		return t.tally()
	}
	if added := t.addedTime(); added != "" {
		return added
	}
	contenders := t.contenders(false)
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
	text := fmt.Sprintf("%s, %s", s.best[0].name, t.figure(s.best[0]))
	if len(s.best) == len(contenders) {
		return text + "; all others are tied with it."
	}
	if len(s.best) > 1 {
		text += "; tied with it: " + someNames(s.best[1:], most)
	}
	if len(s.apart) > 0 {
		text += "; cannot be told from it: " + someNames(s.apart, most)
	}
	if len(s.few) > 0 {
		text += "; too few rounds to compare: " + someNames(s.few, most)
	}
	return text + "."
}

// someNames lists at most so many names.
func someNames(entries []*entry, most int) string {
	out := namedAll(entries)
	if most == 0 && len(out) > 1 {
		return format.Count(len(out), "other")
	}
	return format.SomeOf(out, max(most, 1))
}

// briefTable has a line for each connection, or each row of a list, that has a figure.
func (st *suiteTables) briefTable(style int) Table {
	var order, first, few []string // first are those that the sentences on the workloads name, and few those of too few rounds that they name
	for _, t := range st.workloads {
		contenders := t.contenders(false)
		switch {
		case st.statesPairs() && st.list():
			contenders = t.measured()
		case st.statesPairs():
			contenders = slices.DeleteFunc(contenders, func(e *entry) bool { _, ok := t.statedRatio(e); return !ok })
		case st.list():
			contenders = t.ranked(t.measured())
		}
		if len(contenders) > 0 && !st.statesPairs() {
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
	out := Table{Columns: []Column{{}}}
	for _, name := range order {
		out.Columns[0].Cells = append(out.Columns[0].Cells, Cell{Text: name})
		line := Line{Status: result.StatusOK, Rank: 3}
		switch {
		case slices.Contains(first, name):
			line.Rank = 0
		case slices.Contains(few, name):
			line.Rank = 1
		case slices.ContainsFunc(st.workloads, func(t *workloadTable) bool { return t.hasCost(name) }):
			line.Rank = 2
		}
		out.Lines = append(out.Lines, line)
	}
	for i, t := range st.workloads {
		for j, c := range t.briefColumns(order, style) {
			c.Right, c.Rank, c.Joined = true, 1+i, j > 0
			out.Columns = append(out.Columns, c)
		}
	}
	if legend := st.briefLegend(style); legend != "" {
		out.Notes = []string{legend}
	}
	out.Signs = append(signs(st.workloads[0].turns()), Sign{format.None, format.None + "\u00a0none."})
	return out
}

// hasCost reports whether a connection has a cluster IP with a cost.
func (t *workloadTable) hasCost(name string) bool {
	return slices.ContainsFunc(t.entries, func(e *entry) bool { return e.name == name && e.cost != nil })
}

// briefColumns are a workload's columns in the brief table: the figures, and the ratios to the
// pod IP or to the reference.
func (t *workloadTable) briefColumns(order []string, style int) []Column {
	unit := t.unit
	if unit == result.UnitTransactions {
		unit = "1000/s"
	}
	if t.inTime() {
		unit = "µs"
	}
	columns := []Column{{Head: []string{t.briefHead(), format.ShortUnit(unit)}}}
	if !t.suite.list() {
		columns = []Column{{Over: t.briefHead(), Head: []string{format.ShortUnit(unit)}}}
	}
	if t.suite.statesPairs() && !t.suite.list() {
		columns = append(columns, Column{Head: []string{"cost"}})
	}
	place := map[string]int{}
	for _, via := range t.vias() {
		columns = append(columns, Column{Head: []string{via}, Tight: len(columns) > 1})
		place[via] = len(columns) - 1
	}
	if t.inTime() {
		columns = append(columns, Column{Head: []string{"added", "µs"}, Marked: true})
	} else if t.suite.list() && t.reference != nil {
		columns = append(columns, Column{Head: []string{"ratio to", t.reference.name}, Marked: true})
	} else if t.suite.list() && t.suite.statesPairs() {
		columns = append(columns, Column{Head: []string{"", "ratio"}, Marked: true})
	}
	byName := map[string][]*entry{}
	for _, e := range t.measured() {
		byName[e.name] = append(byName[e.name], e)
	}
	for _, name := range order {
		cells := slices.Repeat([]Cell{{Text: format.None}}, len(columns))
		for _, e := range byName[name] {
			switch {
			case t.suite.list():
				cells[0] = t.briefFigure(e)
				if e == t.reference {
					cells[1] = Cell{Text: map[bool]string{true: "0", false: "1"}[t.inTime()]}
				} else if d, ok := t.toReference(e); ok && t.inTime() {
					cells[1] = t.added(d)
				} else if t.reference != nil && t.reference.ok() {
					cells[1] = ratioCell(t.difference(e, t.reference), style)
				} else if d, ok := t.statedRatio(e); ok && t.suite.statesPairs() {
					cells[1] = ratioCell(d, style)
				}
			case e.Target == result.TargetPodIP:
				cells[0] = t.briefFigure(e)
				if d, ok := t.statedRatio(e); ok && t.suite.statesPairs() {
					cells[1] = t.costCell(d, style)
				}
			case e.cost != nil:
				cells[place[format.ShortVia(e.Via)]] = t.costCell(t.of(*e.cost), style)
			}
		}
		for i := range columns {
			columns[i].Cells = append(columns[i].Cells, cells[i])
		}
	}
	return columns
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
		result.WorkloadTCPStream: "stream", result.WorkloadUDPStream: "UDP", result.WorkloadTCPRR: "req./resp.",
		result.WorkloadTCPCRR: "connect", result.WorkloadUDPRR: "UDP r./r.", result.WorkloadCNIAdd: "ADD", result.WorkloadCNIDel: "DEL",
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

// vias are the kinds of cluster IP that have a cost.
func (t *workloadTable) vias() []string {
	var out []string
	for _, via := range format.ViaOrder() {
		if slices.ContainsFunc(t.entries, func(e *entry) bool { return e.cost != nil && e.Via == via && !e.repeat }) && !slices.Contains(out, format.ShortVia(via)) {
			out = append(out, format.ShortVia(via))
		}
	}
	return out
}

// briefLegend explains the columns of a brief table.
func (st *suiteTables) briefLegend(style int) string {
	costs := slices.ContainsFunc(st.workloads, func(t *workloadTable) bool { return len(t.vias()) > 0 })
	var parts []string
	switch of := st.Statements; {
	case !st.statesPairs() || len(of) == 0 || of[0].Subject == "":
	case st.list() && len(of) > 1:
		var captions []string
		for _, one := range of {
			captions = append(captions, format.Clean(one.Caption))
		}
		parts = append(parts, "ratio, round by round: "+strings.Join(captions, "; ")+".")
	case st.list():
		parts = append(parts, "ratio: "+format.Clean(of[0].Subject)+" over "+format.Clean(of[0].Object)+".")
	case len(of) == 1:
		parts = append(parts, "cost: how much less "+format.Clean(of[0].Subject)+" than "+format.Clean(of[0].Object)+", in\u00a0%.")
	}
	if costs {
		parts = append(parts, "Cost of a cluster IP by iptables, nftables, eBPF in %\u00a0of the pod IP, ±\u00a0half its 95\u00a0% interval.")
	}
	switch least, most := st.widths(); {
	case costs:
	case style == styleHalf:
		parts = append(parts, "± half of the 95\u00a0% interval.")
	case style >= stylePlain && most > 0:
		parts = append(parts, "95\u00a0% intervals of ratios: "+reach(least, most)+", see -o wide.")
	}
	return strings.Join(parts, " ")
}
