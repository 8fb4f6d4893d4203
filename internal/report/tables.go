// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

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
	if !t.suite.list() && len(t.contest) > 1 {
		out.Notes = append(out.Notes, "A figure here is the row's own. In the answer, a link's is the best link's times their ratio within rounds, which is free of drift.")
	}
	return out
}

func (t *workloadTable) columns() []Column {
	var out []Column
	if t.suite.list() {
		out = append(out, t.texts(0, func(e *entry) string { return e.name }, "way"))
	} else {
		out = append(out,
			t.texts(0, func(e *entry) string { return e.name }, "connection"),
			t.texts(0, func(e *entry) string { return targetName(e.Target) }, "target"),
			t.texts(0, (*entry).via, "via"))
	}
	labels := len(out)
	out = append(out, t.figures(3, func(e *entry) float64 { return e.Offered }, "offered", t.offeredUnit()), t.medians(), t.intervals())
	if t.suite.list() {
		out = append(out, t.figures(2, t.meanLatency, "mean", "µs"))
	}
	out = append(out, t.figures(3, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs", "per "+shortUnit(t.cpuUnit)), t.lost())
	out = append(out, t.percentiles()...)
	out = append(out, t.figures(3, func(e *entry) float64 { return e.CallsPerSecond }, "calls", "per s"),
		t.texts(RankDetail, func(e *entry) string { return Number(float64(len(e.Samples)), 0) }, "rounds"),
		t.figures(RankDetail, func(e *entry) float64 { return e.Evidence.SoftirqsPerUnit }, "softirqs", "per "+shortUnit(t.cpuUnit)))
	for i := range out {
		out[i].Right = i >= labels
	}
	out = append(out, t.texts(1, func(e *entry) string { return e.Status }, "status"))
	if t.suite.list() && t.suite.Variants {
		out = append(out, t.texts(6, variant, "variant"))
	}
	return withoutEmpty(out)
}

// via names what translates the address, and the service proxy that is in place though the row does not use it.
func (e *entry) via() string {
	if e.Via == result.ViaNone && e.Proxy != "" && e.Datapath != result.DatapathEBPF {
		return "none (" + viaName(e.Proxy) + " in place)"
	}
	return viaName(e.Via)
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
	places := fewDecimals(all...)
	return t.texts(rank, func(e *entry) string {
		if !e.ok() || value(e) <= 0 {
			return None
		}
		return Number(value(e), ownDecimals(value(e), places))
	}, head...)
}

// known makes a column of figures of the rows that have one.
func (t *workloadTable) known(rank int, text func(*entry) string, head ...string) Column {
	return t.texts(rank, func(e *entry) string {
		if !e.ok() {
			return None
		}
		return text(e)
	}, head...)
}

func (t *workloadTable) offeredUnit() string {
	if t.setup.Paced() {
		return shortUnit(result.UnitTransactions)
	}
	return shortUnit(t.unit)
}

func (t *workloadTable) medians() Column {
	head := "figure"
	if !t.setup.Paced() && slices.ContainsFunc(t.entries, func(e *entry) bool { return e.Offered > 0 }) {
		head = "received"
	}
	places := t.places()
	return t.known(0, func(e *entry) string { return Number(e.Median, ownDecimals(e.Median, places)) }, head, shortUnit(t.unit))
}

func (t *workloadTable) intervals() Column {
	places := t.places()
	return t.known(6, func(e *entry) string { return intervalText(e.CI95, ownDecimals(e.Median, places)) }, "95 % interval", shortUnit(t.unit))
}

// lost makes the column of the datagrams that did not arrive or came out of order, or of
// the transactions that were lost, if any was.
func (t *workloadTable) lost() Column {
	switch {
	case t.workload == result.WorkloadTCPCRR || t.workload == result.WorkloadUDPRR:
		return t.figures(2, func(e *entry) float64 { return float64(e.Lost) }, "lost", shortUnit(t.cpuUnit))
	case t.workload != result.WorkloadUDPStream || t.wording.counted:
		return Column{}
	}
	return t.known(2, func(e *entry) string {
		text := percentOf(e.LostShare)
		if e.OutOfOrder > 0 {
			text += fmt.Sprintf(", %s late", Number(float64(e.OutOfOrder), 0))
		}
		return text
	}, "lost", "of sent")
}

// percentiles makes the columns of the latency: of calls in ms.
func (t *workloadTable) percentiles() []Column {
	unit, scale := "µs", 1.0
	if t.calls() {
		unit, scale = "ms", 1e3
	}
	one := func(rank int, name string, pick func(*result.Latency) float64) Column {
		return t.figures(rank, func(e *entry) float64 {
			if e.LatencyUS == nil {
				return 0
			}
			return pick(e.LatencyUS) / scale
		}, name, unit)
	}
	return []Column{
		one(4, "p50", func(l *result.Latency) float64 { return l.P50 }),
		one(8, "p90", func(l *result.Latency) float64 { return l.P90 }),
		one(5, "p99", func(l *result.Latency) float64 { return l.P99 }),
		one(8, "p99.9", func(l *result.Latency) float64 { return l.P999 }),
	}
}

func variant(e *entry) string {
	if e.Variant == "" || e.Repeats != "" {
		return None
	}
	return clean(e.Variant)
}

// notes lists the remarks on rows, each once with the rows that have it, or with the
// connection if all of its rows have it.
func (t *workloadTable) notes() []string {
	total, noted, rows := map[string]int{}, map[[2]string]int{}, map[string][]*entry{}
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
		noted[[2]string{e.name, e.Note}]++
	}
	var notes []string
	for _, note := range order {
		var who []string
		for _, e := range rows[note] {
			name := clean(e.ID)
			if n := noted[[2]string{e.name, note}]; n > 1 && n == total[e.name] {
				name = e.name
			}
			if !slices.Contains(who, name) {
				who = append(who, name)
			}
		}
		notes = append(notes, strings.Join(who, ", ")+": "+clean(note))
	}
	return notes
}

// legend explains the signs in the table's columns of figures; where rows took turns, verdicts are Holm's.
func (t Table) legend(holm bool) []string {
	none := map[bool]string{true: "~\u00a0not significant (Holm-corrected).", false: "~\u00a0no difference found."}[holm]
	var parts []string
	for _, sign := range [][2]string{{"~", none}, {"?", "?\u00a0too few rounds."}, {"±", "±\u00a0half of the 95\u00a0% interval."}} {
		if slices.ContainsFunc(t.Columns, func(c Column) bool {
			return c.Right && slices.ContainsFunc(c.Cells, func(cell Cell) bool { return strings.Contains(cell.Text+cell.Mark, sign[0]) })
		}) {
			parts = append(parts, sign[1])
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{strings.Join(parts, " ")}
}

// comparisonTable has a line for each comparison in the file's order, A/A last; nil if there is none.
func (t *workloadTable) comparisonTable() *Table {
	var all []result.Comparison
	for _, aa := range []bool{false, true} {
		for _, c := range t.comparisons {
			if c.AA == aa && c.RoundsDone() > 0 {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	column := func(rank int, text func(result.Comparison) string, head ...string) Column {
		c := Column{Head: head, Right: rank > 0 && rank != 3, Rank: rank}
		for _, of := range all {
			c.Cells = append(c.Cells, Cell{Text: text(of)})
		}
		return c
	}
	turns := func(value func(result.Comparison) string, head ...string) Column {
		return column(RankDetail, func(c result.Comparison) string {
			if c.Over == "" {
				return None
			}
			return value(c)
		}, head...)
	}
	p := func(v float64) string { return strconv.FormatFloat(v, 'g', 2, 64) }
	share := func(of func(result.Shares) float64, level string) Column {
		return turns(func(c result.Comparison) string { return Number(100*of(c.Shares), 0) }, "variance, %", level)
	}
	ratios := column(0, func(c result.Comparison) string { return Number(c.Ratio, 3) }, "ratio")
	ratios.Right, ratios.Marked = true, true
	for i, c := range all {
		if !c.AA {
			ratios.Cells[i].Mark = judge(c).verdict.mark()
		}
	}
	out := &Table{ID: "compare-" + t.anchor, Title: t.name, Columns: []Column{
		column(0, comparisonName, "rows"), ratios,
		column(1, func(c result.Comparison) string { return intervalText(c.CI95, 3) }, "95 % interval"),
		column(2, func(c result.Comparison) string { return Number(float64(c.RoundsDone()), 0) }, "rounds"),
		column(RankDetail, func(c result.Comparison) string { return clean(c.Over) }, "over"),
		turns(func(c result.Comparison) string { return p(c.P) }, "p"),
		turns(func(c result.Comparison) string { return p(c.AdjustedP) }, "p, adjusted"),
		share(func(s result.Shares) float64 { return s.Lab }, "labs"),
		share(func(s result.Shares) float64 { return s.Process }, "processes"),
		share(func(s result.Shares) float64 { return s.Connection }, "connections"),
		share(func(s result.Shares) float64 { return s.Round }, "rounds"),
		column(3, t.comparedFor, "of"),
	}}
	out.Columns = slices.DeleteFunc(out.Columns, func(c Column) bool {
		return !slices.ContainsFunc(c.Cells, func(cell Cell) bool { return cell.Text != "" && cell.Text != None })
	})
	for _, c := range all {
		line := Line{Status: result.StatusOK, First: true}
		if e := t.byID[c.Numerator]; e != nil {
			line.Color = t.kindOf(e).Color
		}
		out.Lines = append(out.Lines, line)
	}
	out.Notes = out.legend(t.turns())
	return out
}

// comparedFor says what a comparison is of: its question, or the caption under which the suite states it.
func (t *workloadTable) comparedFor(c result.Comparison) string {
	if text := questions[t.asks(c)]; text != "" {
		return text
	}
	for _, s := range t.suite.Statements {
		for _, p := range s.Pairs {
			if p.Numerator == c.Numerator && p.Denominator == c.Denominator {
				return strings.TrimSuffix(clean(s.Caption)+", "+spelt(clean(p.Label)), ", ")
			}
		}
	}
	return ""
}

// questions are what comparisons are of, by [result.Comparison.Asks].
var questions = map[string]string{
	result.AsksRank: "the best link", result.AsksProxy: "cost of all traffic", result.AsksService: "cost of a Service on top", result.AsksTotal: "both costs",
	result.AsksBigTCP: "BIG TCP",
}

// comparisonName names a comparison by its rows.
func comparisonName(c result.Comparison) string {
	name := clean(c.Numerator) + " over " + clean(c.Denominator)
	above, rest, cut := strings.Cut(clean(c.Numerator), "/")
	if below, target, _ := strings.Cut(clean(c.Denominator), "/"); cut && above == below && rest != "" && target != "" {
		name = above + ": " + rest + " over " + target
	}
	if c.AA {
		name = "A/A: " + name
	}
	return name
}
