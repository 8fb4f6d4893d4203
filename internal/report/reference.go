// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// inTime reports whether rows compare with the reference in time per transaction.
func (t *workloadTable) inTime() bool {
	return t.suite.TransactionTime && t.reference != nil && !t.wording.counted &&
		(t.workload == result.WorkloadTCPRR || t.workload == result.WorkloadTCPCRR || t.workload == result.WorkloadUDPRR)
}

// addedTime gives the time of the reference's transaction and what each row adds to it, in
// words; empty where rows are not compared in time.
func (t *workloadTable) addedTime() string {
	if !t.inTime() || t.noReference() != "" || t.reference.CI95 == nil {
		return ""
	}
	var adds, same []string
	for _, e := range t.ranked(t.measured()) {
		d, ok := t.toReference(e)
		switch {
		case !ok:
		case d.verdict == tied:
			same = append(same, e.name)
		default:
			cell := t.added(d)
			adds = append(adds, e.name+" "+cell.Text+cell.Mark)
		}
	}
	base := t.meanLatency(t.reference)
	text := fmt.Sprintf("%s takes %s\u00a0µs", t.reference.name, format.Number(base, format.FewDecimals(base)))
	if len(adds) > 0 {
		text += "; added µs: " + strings.Join(adds, ", ")
	}
	if len(same) > 0 {
		text += "; no difference found: " + strings.Join(same, ", ")
	}
	return text + "."
}

// added prints the time that a ratio of times adds to the reference's, in µs.
func (t *workloadTable) added(d difference) Cell {
	base := t.meanLatency(t.reference)
	places := format.Decimals(base) - 1
	out := Cell{Text: format.Number(base*(d.ratio-1), places), Mark: d.verdict.mark()}
	if d.ci != nil {
		out.Text += out.Mark + fmt.Sprintf(" (%s to %s)", format.Number(base*(d.ci[0]-1), places), format.Number(base*(d.ci[1]-1), places))
		out.Mark = ""
	}
	return out
}

// toReference compares an entry with the reference; false if either has no figure.
func (t *workloadTable) toReference(e *entry) (difference, bool) {
	if t.reference == nil || !t.reference.ok() || !e.ok() || e == t.reference {
		return difference{}, false
	}
	d := t.difference(e, t.reference)
	if t.inTime() {
		d = d.turned()
	}
	return d, d.ratio > 0
}

// noReference says why the table has no comparison with the reference; empty if it
// has.
func (t *workloadTable) noReference() string {
	switch {
	case t.reference == nil:
		return "no row to compare the others with was measured." + t.failed()
	case !t.reference.ok():
		return t.reference.name + " has no figure to compare the others with." + t.failed()
	case len(t.measured()) < 2:
		one, _, _ := t.nouns()
		return t.reference.name + " is the only " + one + " with a figure: " + t.figure(t.reference) + "." + t.failed()
	}
	return ""
}

// againstReference compares all measured rows with the reference, a line for each
// outcome: worse rows first, then tied ones, then better ones.
func (t *workloadTable) againstReference() []string {
	worse, better := t.wording.lower, t.wording.higher
	switch {
	case t.inTime():
		worse, better = "more time per transaction", "less time per transaction"
	case t.wording.counted:
		worse, better = "more instructions", "fewer instructions"
	case t.wording.less:
		worse, better = better, worse
	}
	groups := []struct {
		words string
		join  func([]string) string
		names []string
	}{
		{worse + " than %s: ", commas, nil}, {"no difference to %s found: ", format.List, nil},
		{better + " than %s: ", commas, nil}, {"too few rounds to tell from %s: ", format.List, nil},
	}
	for _, e := range t.measured() {
		if e == t.reference {
			continue
		}
		d := t.difference(e, t.reference)
		i, name := 2, e.named()
		switch {
		case d.verdict == tooFew:
			i = 3
		case d.verdict == tied:
			i = 1
		default:
			if t.wording.worse(d.verdict) {
				i = 0
			}
			if t.inTime() {
				d = d.turned()
			}
			name += " " + d.size("", "")
		}
		groups[i].names = append(groups[i].names, name)
	}
	var out []string
	for _, g := range groups {
		if len(g.names) > 0 {
			out = append(out, fmt.Sprintf(g.words, t.reference.name)+g.join(g.names)+".")
		}
	}
	return out
}

// commas joins names that have figures.
func commas(parts []string) string { return strings.Join(parts, ", ") }

// referenceFigure gives the reference's own figure.
func (t *workloadTable) referenceFigure() string {
	if t.noReference() != "" {
		return ""
	}
	base := t.figure(t.reference)
	if mean := t.meanLatency(t.reference); mean > 0 {
		base += ", " + format.Number(mean, format.FewDecimals(mean)) + " µs on average"
	}
	return fmt.Sprintf("Figure of %s: %s.%s", t.reference.name, base, t.failed())
}

// referenceColumn makes the column of each row's share of the reference, in per
// cent, or of the extra time that it takes.
func (t *workloadTable) referenceColumn(rank int) Column {
	if t.reference == nil {
		return Column{}
	}
	head := []string{"% of", t.reference.name}
	if t.inTime() {
		head = []string{"time against", t.reference.name + ", %"}
	}
	c := Column{Head: head, Rank: rank, Right: true, Marked: true}
	for _, e := range t.entries {
		d, ok := t.toReference(e)
		cell := Cell{Text: format.None}
		switch {
		case e == t.reference && e.ok():
			cell.Text = t.share(1)
		case ok:
			cell.Text = t.share(d.ratio)
			if !e.repeat { // where any difference is the machine's
				cell.Mark = d.verdict.mark()
			}
		}
		c.Cells = append(c.Cells, cell)
	}
	return c
}

// share prints a ratio to the reference in per cent: all of it, or of times the part
// above one.
func (t *workloadTable) share(r float64) string {
	if !t.inTime() {
		return format.Number(100*r, 1)
	}
	text := format.Number(100*(r-1), 1)
	if r > 1 && math.Abs(r-1) >= 0.0005 {
		text = "+" + text
	}
	return text
}

// referenceInterval prints the interval of the figure in that column.
func (t *workloadTable) referenceInterval(e *entry) string {
	d, ok := t.toReference(e)
	if !ok || d.ci == nil {
		return format.None
	}
	return t.share(d.ci[0]) + " to " + t.share(d.ci[1])
}

// tailColumn makes the column of the 99th percentile against that of the
// reference. It covers all rounds together, so it has no interval.
func (t *workloadTable) tailColumn() Column {
	if !t.calls() || t.reference == nil || !t.reference.ok() || t.reference.LatencyUS == nil {
		return Column{}
	}
	base := t.reference.LatencyUS.P99
	return t.texts(5, func(e *entry) string {
		if !e.ok() || e.LatencyUS == nil || base <= 0 {
			return format.None
		}
		return format.Number(100*e.LatencyUS.P99/base, 1)
	}, "p99, % of", t.reference.name)
}
