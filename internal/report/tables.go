// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// rowTable has a line for each row.
func (t *workloadTable) rowTable() Table {
	out := Table{ID: t.anchor, Title: t.heading(), Columns: t.columns(), Notes: t.notes()}
	for i, e := range t.entries {
		out.Lines = append(out.Lines, Line{Status: e.Status, Color: t.kindOf(e).Color, First: i == 0 || t.entries[i-1].name != e.name,
			Path: t.suite.tracedAs(e.ID)})
	}
	out.Notes = append(out.legend(t.turns()), out.Notes...)
	if len(t.contest) > 1 {
		out.Notes = append(out.Notes, "A figure here is the row's own. In the answer, a link's is the best link's times their ratio within rounds, which is free of drift.")
	}
	return out
}

// columns lays out the rows.
func (t *workloadTable) columns() []Column {
	var out []Column
	if t.suite.list() {
		out = append(out, t.texts(0, func(e *entry) string { return e.name }, "way"))
	} else {
		out = append(out,
			t.texts(0, func(e *entry) string { return e.name }, "connection"),
			t.texts(0, func(e *entry) string { return format.Target(e.Target) }, "target"),
			t.texts(0, (*entry).via, "via"))
	}
	labels := len(out)
	out = append(out, t.figures(3, func(e *entry) float64 { return e.Offered }, "offered", t.offeredUnit()), t.medians(), t.intervals())
	if t.suite.list() {
		out = append(out, t.referenceColumn(2), t.means(2))
	}
	if t.suite.list() && t.reference != nil {
		against := t.texts(2, t.referenceInterval, "95 % interval", "of it")
		if !t.calls() { // whose claims rest on this interval
			against.Rank, against.Wide = 9, true
		}
		out = append(out, against)
	}
	out = append(out, t.figures(3, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs", "per "+format.ShortUnit(t.cpuUnit)), t.lost())
	out = append(out, t.percentiles()...)
	out = append(out, t.tailColumn(), t.figures(3, func(e *entry) float64 { return e.CallsPerSecond }, "calls", "per s"))
	rounds := t.texts(7, func(e *entry) string { return format.Number(float64(len(e.Samples)), 0) }, "rounds")
	softirqs := t.figures(8, func(e *entry) float64 { return e.Evidence.SoftirqsPerUnit }, "softirqs", "per "+format.ShortUnit(t.cpuUnit))
	rounds.Wide, softirqs.Wide = true, true
	out = append(out, rounds, softirqs)
	for i := range out {
		out[i].Right = i >= labels
	}
	out = append(out, t.texts(1, func(e *entry) string { return e.Status }, "status"))
	if t.suite.list() && t.suite.Variants {
		out = append(out, t.texts(6, variant, "variant"))
	}
	programs := t.texts(9, func(e *entry) string { return strings.Join(e.programs("="), " ") }, "program runs")
	programs.Wide = true
	return withoutEmpty(append(out, programs))
}

// via names what translates the address, and the service proxy that is in place though the row does not use it.
func (e *entry) via() string {
	if e.Via == result.ViaNone && e.Proxy != "" && e.Datapath != result.DatapathEBPF {
		return "none (" + format.Via(e.Proxy) + " in place)"
	}
	return format.Via(e.Via)
}

// texts makes a column of strings.
func (t *workloadTable) texts(rank int, text func(*entry) string, head ...string) Column {
	c := Column{Head: head, Rank: rank}
	for _, e := range t.entries {
		c.Cells = append(c.Cells, Cell{Text: text(e)})
	}
	return c
}

// figures makes a column of numbers with the same number of decimal places; it is
// empty if no entry has the figure.
func (t *workloadTable) figures(rank int, value func(*entry) float64, head ...string) Column {
	var all []float64
	for _, e := range t.entries {
		if e.ok() && value(e) > 0 {
			all = append(all, value(e))
		}
	}
	if len(all) == 0 {
		return Column{}
	}
	places := format.FewDecimals(all...)
	return t.texts(rank, func(e *entry) string {
		if !e.ok() || value(e) <= 0 {
			return format.None
		}
		return format.Number(value(e), format.Own(value(e), places))
	}, head...)
}

// offeredUnit is the unit of what the rows offered.
func (t *workloadTable) offeredUnit() string {
	if t.setup.Paced() {
		return format.ShortUnit(result.UnitTransactions)
	}
	return format.ShortUnit(t.unit)
}

// medians makes the column of the rows' figures.
func (t *workloadTable) medians() Column {
	head := "figure"
	if !t.setup.Paced() && slices.ContainsFunc(t.entries, func(e *entry) bool { return e.Offered > 0 }) {
		head = "received"
	}
	places := t.places()
	return t.texts(0, func(e *entry) string {
		if !e.ok() {
			return format.None
		}
		return format.Number(e.Median, format.Own(e.Median, places))
	}, head, format.ShortUnit(t.unit))
}

// intervals makes the column of the rates' intervals.
func (t *workloadTable) intervals() Column {
	places := t.places()
	return t.texts(6, func(e *entry) string {
		if !e.ok() {
			return format.None
		}
		return format.Interval(e.CI95, format.Own(e.Median, places))
	}, "95 % interval", format.ShortUnit(t.unit))
}

// means makes the column of the mean time of a transaction.
func (t *workloadTable) means(rank int) Column {
	c := t.figures(rank, t.meanLatency, "mean", "µs")
	c.Right = true
	return c
}

// lost makes the column of the datagrams that did not arrive or came out of order, or of
// the transactions that were lost, if any was.
func (t *workloadTable) lost() Column {
	if t.workload == result.WorkloadTCPCRR || t.workload == result.WorkloadUDPRR {
		return t.figures(2, func(e *entry) float64 { return float64(e.Lost) }, "lost", format.ShortUnit(t.cpuUnit))
	}
	c := t.lostShares()
	for i, e := range t.entries {
		if !c.empty() && e.ok() && e.OutOfOrder > 0 {
			c.Cells[i].Text += fmt.Sprintf(", %s late", format.Number(float64(e.OutOfOrder), 0))
		}
	}
	return c
}

// lostShares makes the column of the share of datagrams that did not arrive.
func (t *workloadTable) lostShares() Column {
	if t.workload != result.WorkloadUDPStream || t.wording.counted {
		return Column{}
	}
	return t.texts(2, func(e *entry) string {
		if !e.ok() {
			return format.None
		}
		return format.Percent(e.LostShare)
	}, "lost", "of sent")
}

// percentiles makes the columns of the latency.
func (t *workloadTable) percentiles() []Column {
	one := func(rank int, name string, wide bool, pick func(*result.Latency) float64) Column {
		c := t.figures(rank, func(e *entry) float64 {
			if e.LatencyUS == nil {
				return 0
			}
			return t.latency(pick(e.LatencyUS))
		}, name, t.latencyUnit())
		c.Wide, c.Right = wide, true
		return c
	}
	return []Column{
		one(4, "p50", false, func(l *result.Latency) float64 { return l.P50 }),
		one(8, "p90", true, func(l *result.Latency) float64 { return l.P90 }),
		one(5, "p99", false, func(l *result.Latency) float64 { return l.P99 }),
		one(8, "p99.9", true, func(l *result.Latency) float64 { return l.P999 }),
	}
}

// variant prints a row's variant.
func variant(e *entry) string {
	if e.Variant == "" || e.Repeats != "" {
		return format.None
	}
	return format.Clean(e.Variant)
}

// notes lists the remarks on rows, each once with the rows that have it, or with the
// connection if all of its rows have it.
func (t *workloadTable) notes() []string {
	type remark struct{ name, note string }
	total, noted := map[string]int{}, map[remark][]*entry{}
	rows := map[string][]*entry{}
	var order []string
	for _, e := range t.entries {
		total[e.name]++
		if e.Note == "" {
			continue
		}
		if rows[e.Note] == nil {
			order = append(order, e.Note)
		}
		rows[e.Note] = append(rows[e.Note], e)
		r := remark{e.name, e.Note}
		noted[r] = append(noted[r], e)
	}
	var notes []string
	for _, note := range order {
		var who []string
		for _, e := range rows[note] {
			switch same := noted[remark{e.name, note}]; {
			case len(same) < 2 || len(same) < total[e.name]:
				who = append(who, format.Clean(e.ID))
			case e == same[0]:
				who = append(who, e.name)
			}
		}
		notes = append(notes, strings.Join(who, ", ")+": "+format.Clean(note))
	}
	return notes
}

// signs explains the signs that a table may have; where rows took turns, verdicts are Holm's.
func signs(holm bool) []Sign {
	none := map[bool]string{true: "~\u00a0not significant (Holm-corrected).", false: "~\u00a0no difference found."}[holm]
	return []Sign{{"~", none}, {"?", "?\u00a0too few rounds."}}
}

// marksLegend explains the signs in texts.
func marksLegend(holm bool, texts ...string) string {
	var parts []string
	for _, s := range signs(holm) {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, s.Sign) }) {
			parts = append(parts, s.Text)
		}
	}
	return strings.Join(parts, " ")
}

// legend explains the marks in the table's columns of figures.
func (t Table) legend(holm bool) []string {
	var texts []string
	for _, c := range t.Columns {
		for _, cell := range c.Cells {
			if c.Right {
				texts = append(texts, cell.Text+cell.Mark)
			}
		}
	}
	if legend := marksLegend(holm, texts...); legend != "" {
		return []string{legend}
	}
	return nil
}

// comparisonTable has a line for each comparison in the file's order, A/A last; nil if there is none.
func (t *workloadTable) comparisonTable() *Table {
	if len(t.comparisons) == 0 {
		return nil
	}
	variance := newVarianceColumns()
	rows := Column{Head: []string{"rows"}}
	value := Column{Head: []string{"ratio"}, Right: true, Marked: true}
	ci := Column{Head: []string{"95 % interval"}, Right: true}
	rounds := Column{Head: []string{"rounds"}, Right: true, Rank: 2}
	finding := Column{Head: []string{"finding"}, Rank: 1}
	asks, asked := Column{Head: []string{"of"}, Rank: 3}, false
	out := &Table{ID: "compare-" + t.anchor, Title: t.name}
	add := func(c result.Comparison) {
		d := judge(c)
		mark, words := d.verdict.mark(), t.wording.describe(d.verdict, c.Ratio)
		if d.verdict == tied {
			words = "no difference " + inside(d.reach())
			if !t.suite.list() {
				mark = ""
			}
		}
		if c.AA {
			mark, words = "", "the machine's own spread"
		}
		reach := "too few rounds"
		if c.CI95 != nil {
			reach = format.Ratio(c.CI95[0]) + " to " + format.Ratio(c.CI95[1])
		}
		rows.Cells = append(rows.Cells, Cell{Text: comparisonName(c)})
		value.Cells = append(value.Cells, Cell{Text: format.Ratio(c.Ratio), Mark: mark})
		ci.Cells = append(ci.Cells, Cell{Text: reach})
		rounds.Cells = append(rounds.Cells, Cell{Text: format.Number(float64(c.RoundsDone()), 0)})
		finding.Cells = append(finding.Cells, Cell{Text: words})
		asks.Cells, asked = append(asks.Cells, Cell{Text: questions[t.asks(c)]}), asked || t.asks(c) != ""
		variance.add(c)
		line := Line{Status: result.StatusOK, First: true}
		if e := t.byID[c.Numerator]; e != nil {
			line.Color = t.kindOf(e).Color
		}
		out.Lines = append(out.Lines, line)
	}
	for _, aa := range []bool{false, true} {
		for _, c := range t.comparisons {
			if c.AA == aa && c.RoundsDone() > 0 {
				add(c)
			}
		}
	}
	out.Columns = []Column{rows, value, ci, rounds, finding}
	out.Notes = out.legend(t.turns())
	if asked {
		out.Columns = append(out.Columns, asks)
	}
	if variance.known {
		out.Columns = append(out.Columns, variance.columns...)
	}
	return out
}

// questions are what comparisons are of, by [result.Comparison.Asks].
var questions = map[string]string{
	result.AsksRank: "the best link", result.AsksProxy: "cost of all traffic", result.AsksService: "cost of a Service on top", result.AsksTotal: "both costs",
	result.AsksBigTCP: "BIG TCP",
}

// comparisonName names a comparison by its rows.
func comparisonName(c result.Comparison) string {
	name := format.Clean(c.Numerator) + " over " + format.Clean(c.Denominator)
	above, rest, cut := strings.Cut(format.Clean(c.Numerator), "/")
	if below, target, _ := strings.Cut(format.Clean(c.Denominator), "/"); cut && above == below && rest != "" && target != "" {
		name = above + ": " + rest + " over " + target
	}
	if c.AA {
		name = "A/A: " + name
	}
	return name
}
