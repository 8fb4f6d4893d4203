// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mustang/internal/result"
)

func (st *suite) brief() Brief {
	b := Brief{NotMeasured: st.notMeasured(),
		Sentences: append(convert(st.workloads, (*workload).verdict), st.serviceLines()...)}
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
	return convert(t.contest, func(c contender) *entry { return c.entry })
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

// ratio compares a row with the base, or with the other row of its stated pair; of ratio 0 without either.
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

func (t *workload) timed(d difference) difference {
	if t.inTime() {
		return d.turned()
	}
	return d
}

func (st *suite) briefTable() Table {
	out := &Table{Title: "Summary", Columns: []Column{left(0, "", "way")}}
	var order []string
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
	if answered := st.answered(); len(answered) > 0 {
		captions := convert(answered, func(s result.Statement) string { return s.Caption })
		out.Notes = []string{"ratio, round by round: " + strings.Join(captions, "; ") + "."}
	}
	rescaled := func(c contender) bool { return short(c.figure) != short(c.Median) }
	if slices.ContainsFunc(st.workloads, func(t *workload) bool { return slices.ContainsFunc(t.contest, rescaled) }) {
		out.Notes = append(out.Notes, "Figures are computed from the ratios; measured medians: -o wide.")
	}
	out.Notes = append(out.Notes, out.trimmed().legend(st.workloads[0].turns())...)
	return *out
}

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
		of := t.meanLatency(base, base.figure)
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
		v = t.meanLatency(e, e.figure)
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

// certainty says whether both ends shared a CPU, how well A/A pairs agree, and how to be more certain.
func (st *suite) certainty() string {
	var parts []string
	if st.run.sharedCPU() {
		parts = append(parts, "Both ends shared one CPU.")
	}
	short := slices.ContainsFunc(st.workloads, func(t *workload) bool {
		without := func(c result.Comparison) bool { return c.CI95 == nil && c.RoundsDone() > 0 }
		return slices.ContainsFunc(t.comparisons, without)
	})
	if short {
		parts = append(parts, "The run was too short for 95\u00a0% intervals, so no difference is certain.")
	} else if agreed := st.agreed(); agreed != "" {
		parts = append(parts, "One path measured twice may differ by "+agreed+".")
	}
	if more := st.run.longer(); more != "" && st.run.disturbances() == "" {
		parts = append(parts, "More certain: "+strings.ReplaceAll(more, " ", "\u00a0"))
	}
	return strings.Join(parts, " ")
}

// again is how far the widest A/A interval of a class of paths reaches from 1; 0 if none was measured twice.
func (t *workload) again(class string) float64 {
	half := 0.0
	for _, c := range t.comparisons {
		if c.AA && c.CI95 != nil && c.Class == class {
			half = max(half, min(judge(c).reach(), 0.99))
		}
	}
	return half
}

// band is how far the band around 1 in charts reaches: the spread of the quietest class; 0 for none.
func (t *workload) band() float64 {
	for _, class := range result.Classes() {
		if half := t.again(class); half > 0 && half < widestKnown {
			return half
		}
	}
	return 0
}

// agreed returns how well two measurements of one path agree, empty if none was measured twice. If the widest figure
// is over 1.5 times the narrowest, it lists a figure for each workload and class of paths.
func (st *suite) agreed() string {
	among := map[string]string{
		result.ClassUserSpace: " through user space", result.ClassTwoCPUs: " on two CPUs",
		result.ClassGuests: " between virtual machines",
	}
	var halves []float64
	var parts []string
	for _, t := range st.workloads {
		for _, class := range result.Classes() {
			if half := t.again(class); half > 0 {
				halves, parts = append(halves, half), append(parts, percentUp(half)+" ("+t.plural()+among[class]+")")
			}
		}
	}
	if len(halves) > 0 && len(halves) >= len(st.workloads) && slices.Max(halves) <= 1.5*slices.Min(halves) {
		return percentUp(slices.Max(halves))
	}
	return strings.Join(parts, ", ")
}

var labName = regexp.MustCompile(`\blab bench-[0-9]+-[0-9]+: `)

// failures lists the rows without a figure by reason: failed rows first, since they need attention.
func (st *suite) failures() (out []Failure) {
	for _, status := range []string{result.StatusFailed, result.StatusSkipped} {
		var by byReason[result.Row]
		for _, row := range st.rows {
			if row.Status == status {
				by.add(labName.ReplaceAllString(row.Reason, ""), row)
			}
		}
		for _, reason := range by.reasons {
			rows := by.items[reason]
			f := Failure{Status: status, Rows: nameRows(rows, st.rows), Reason: reason}
			for _, row := range rows {
				found := strings.Join(row.Evidence.Findings, "; ")
				switch {
				case found == "":
				case len(rows) > 1:
					f.Reason += fmt.Sprintf(" [%s %s: %s]", row.ID, row.Key().Title(), found)
				default:
					f.Reason += " [" + found + "]"
				}
			}
			out = append(out, f)
		}
	}
	return out
}

const mostSkipped = 3 // the most names that a reason for skipping has

// notMeasured lists by reason what no workload measured: connections with all of their rows, with eBPF and by IPv6,
// or a kind of cluster IP that measured connections lack. Missing kernel features are one reason.
func (st *suite) notMeasured() string {
	known := map[string]bool{} // names that were measured, or are listed
	var all []*entry
	for _, t := range st.workloads {
		for _, e := range t.entries {
			if !e.repeat {
				all = append(all, e)
				known[e.name] = known[e.name] || e.Status != result.StatusSkipped
			}
		}
	}
	listed := map[string]bool{}
	var by byReason[string]
	for _, e := range all {
		name := e.name
		if known[name] && !listed[name] && e.Status == result.StatusSkipped && e.Target == result.TargetClusterIP {
			name = "cluster IP by " + viaName(e.Via)
		}
		if known[name] || listed[strings.TrimSuffix(strings.TrimSuffix(name, " (IPv6)"), "+eBPF")] {
			continue
		}
		known[name], listed[name] = true, true
		reason := e.Reason
		if strings.Contains(reason, "kernel") {
			reason = "missing in this kernel"
		}
		by.add(reason, name)
	}
	if len(by.reasons) == 0 {
		return ""
	}
	return "not measured: " + strings.Join(by.texts(func(reason string, names []string) string {
		return someOf(names, mostSkipped) + ": " + reason
	}), "; ")
}
