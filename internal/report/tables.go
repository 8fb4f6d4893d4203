// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// table has a line for each of the entries. Columns of figures without one are left out.
func (t *workloadTable) table(id, title string, entries []*entry, columns ...column) Table {
	out := Table{ID: id, Title: title}
	for _, c := range columns {
		made := Column{Head: c.head, Rank: c.rank, Right: c.right}
		for _, e := range entries {
			made.Cells = append(made.Cells, Cell{Text: c.text(e)})
		}
		if !c.right || slices.ContainsFunc(made.Cells, func(cell Cell) bool { return cell.Text != None }) {
			out.Columns = append(out.Columns, made)
		}
	}
	for i, e := range entries {
		first := i == 0 || entries[i-1].name != e.name
		out.Lines = append(out.Lines, Line{Status: e.Status, Color: t.kindOf(e).Color, First: first})
	}
	return out
}

// column makes a column of a table of entries. On the right are figures.
type column struct {
	rank  int
	right bool
	text  func(*entry) string
	head  []string
}

func texts(rank int, text func(*entry) string, head ...string) column {
	return column{rank, false, text, head}
}

func figures(rank int, value func(*entry) float64, head ...string) column {
	return known(rank, func(e *entry) string { return positive(value(e)) }, head...)
}

// known makes a column of what is known of rows that have a figure.
func known(rank int, text func(*entry) string, head ...string) column {
	return column{rank, true, func(e *entry) string {
		if !e.ok() {
			return None
		}
		return text(e)
	}, head}
}

// positive prints a figure with three significant digits; of 0 there is none.
func positive(v float64) string {
	if v <= 0 {
		return None
	}
	return Number(v, fewDecimals(v))
}

// rowTable has a line for each row.
func (t *workloadTable) rowTable() Table {
	columns := []column{
		texts(0, func(e *entry) string { return e.name }, "connection"),
		texts(0, func(e *entry) string { return targetName(e.Target) }, "target"),
		texts(0, (*entry).via, "via"),
	}
	if t.suite.list() {
		columns = []column{texts(0, func(e *entry) string { return e.name }, "way")}
	}
	perUnit := "per " + shortUnit(t.cpuUnit)
	columns = append(columns, t.medians()...)
	if t.suite.list() {
		columns = append(columns, figures(2, t.meanLatency, "mean", "µs"))
	}
	columns = append(columns, figures(3, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs", perUnit), t.lost())
	columns = append(columns, t.percentiles()...)
	columns = append(columns,
		figures(3, func(e *entry) float64 { return e.CallsPerSecond }, "calls", "per s"),
		column{RankDetail, true, (*entry).rounds, []string{"rounds"}},
		figures(RankDetail, func(e *entry) float64 { return e.Evidence.SoftirqsPerUnit }, "softirqs", perUnit),
		texts(1, func(e *entry) string { return e.Status }, "status"))
	if t.suite.list() && t.suite.Variants {
		columns = append(columns, texts(6, func(e *entry) string {
			if e.Variant == "" || e.Repeats != "" {
				return None
			}
			return clean(e.Variant)
		}, "variant"))
	}
	out := t.table(t.anchor, t.heading(), t.entries, columns...)
	for i, e := range t.entries {
		out.Lines[i].Path = t.suite.tracedAs(e.ID)
	}
	out.Notes = append(out.legend(t.turns()), t.notes()...)
	if !t.suite.list() && len(t.contest) > 1 {
		out.Notes = append(out.Notes, "A figure here is the row's own. In the answer, a link's is the best link's times "+
			"their ratio within rounds, which is free of drift.")
	}
	return out
}

// rounds is the number of rounds in which the row was measured.
func (e *entry) rounds() string {
	if len(e.Samples) == 0 {
		return None
	}
	return Number(float64(len(e.Samples)), 0)
}

// via names what translates the address, and the service proxy that is in place though the row does not use it.
func (e *entry) via() string {
	if e.Via == result.ViaNone && e.Proxy != "" && e.Datapath != result.DatapathEBPF {
		return "none (" + viaName(e.Proxy) + " in place)"
	}
	return viaName(e.Via)
}

// medians are the columns of the figures, and of what was offered.
func (t *workloadTable) medians() []column {
	var all []float64
	for _, e := range t.entries {
		if e.ok() {
			all = append(all, e.Median)
		}
	}
	places := func(e *entry) int { return max(decimals(all...), fewDecimals(e.Median)) }
	unit, head, offered := shortUnit(t.unit), "figure", shortUnit(t.unit)
	if t.setup.Paced() {
		offered = shortUnit(result.UnitTransactions)
	} else if slices.ContainsFunc(t.entries, func(e *entry) bool { return e.Offered > 0 }) {
		head = "received"
	}
	return []column{
		figures(3, func(e *entry) float64 { return e.Offered }, "offered", offered),
		known(0, func(e *entry) string { return Number(e.Median, places(e)) }, head, unit),
		known(6, func(e *entry) string { return intervalText(e.CI95, places(e)) }, "95 % interval", unit),
	}
}

// lost is the column of the datagrams that did not arrive or came out of order, or of
// the transactions that were lost, if any was.
func (t *workloadTable) lost() column {
	switch {
	case t.workload == result.WorkloadTCPCRR || t.workload == result.WorkloadUDPRR:
		return figures(2, func(e *entry) float64 { return float64(e.Lost) }, "lost", shortUnit(t.cpuUnit))
	case t.workload != result.WorkloadUDPStream || t.wording.counted:
		return figures(2, func(*entry) float64 { return 0 })
	}
	return known(2, func(e *entry) string {
		text := percentOf(e.LostShare)
		if e.OutOfOrder > 0 {
			text += fmt.Sprintf(", %s late", Number(float64(e.OutOfOrder), 0))
		}
		return text
	}, "lost", "of sent")
}

// percentiles are the columns of the latency: of calls in ms.
func (t *workloadTable) percentiles() (out []column) {
	unit, scale := "µs", 1.0
	if t.calls() {
		unit, scale = "ms", 1e3
	}
	for _, p := range []struct {
		rank int
		name string
		of   func(result.Latency) float64
	}{
		{4, "p50", func(l result.Latency) float64 { return l.P50 }},
		{8, "p90", func(l result.Latency) float64 { return l.P90 }},
		{5, "p99", func(l result.Latency) float64 { return l.P99 }},
		{8, "p99.9", func(l result.Latency) float64 { return l.P999 }},
	} {
		out = append(out, figures(p.rank, func(e *entry) float64 {
			if e.LatencyUS == nil {
				return 0
			}
			return p.of(*e.LatencyUS) / scale
		}, p.name, unit))
	}
	return out
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
	for _, sign := range [][2]string{{"~", none}, {"?", "?\u00a0too few rounds."},
		{"±", "±\u00a0half of the 95\u00a0% interval."}} {
		if slices.ContainsFunc(t.Columns, func(c Column) bool {
			return c.Right && slices.ContainsFunc(c.Cells, func(cell Cell) bool {
				return strings.Contains(cell.Text+
					cell.Mark, sign[0])
			})
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
	if text := questions[c.Asks]; text != "" {
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
	result.AsksRank: "the best link", result.AsksProxy: "cost of all traffic",
	result.AsksService: "cost of a Service on top", result.AsksTotal: "both costs",
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
