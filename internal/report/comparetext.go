// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ComparisonText is a comparison as readers see it.
type ComparisonText struct {
	Answer        []string // a sentence for each run but the first
	Warnings      []string // a sentence for each run that is quick, disturbed or noisy
	Differs       Table    // has a line for each property of machine and settings that differs
	Tables        []Table
	Absent, Notes []string // rows that runs lack; meanings of the marks
}

// Text returns the comparison for readers. Wide tables also have the tests.
func (c *Comparison) Text(wide bool) ComparisonText {
	out := ComparisonText{
		Answer:   c.answer(),
		Warnings: convert(c.Warnings, func(w runWarning) string { return w.Run + ": " + strings.Join(w.Texts, "; ") + "." }),
		Tables:   convert(c.Tables, func(t *comparedTable) Table { return c.table(t, wide) }),
		Absent:   c.absent(wide), Notes: c.notes(),
	}
	for _, name := range append([]string{""}, c.Names...) {
		out.Differs.Columns = append(out.Differs.Columns, left(0, name))
	}
	oneAlone := 0
	for _, p := range c.Differs {
		if !wide && slices.Contains(p.Values, "") {
			oneAlone++
			continue
		}
		values := convert(p.Values, func(value string) any { return cmp.Or(value, None) })
		out.Differs.add(Line{}, append([]any{p.Name}, values...)...)
	}
	if oneAlone > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("Not in all runs: %d more properties (-o wide).", oneAlone))
	}
	return out
}

// answer counts the differences of each later run, and names the largest and what differs between the machines.
func (c *Comparison) answer() (out []string) {
	for i, name := range c.Names[1:] {
		var all, few, worse, better int
		largest, most := "", 0.0
		for _, t := range c.Tables {
			for _, l := range t.Lines {
				d := l.Deltas[i]
				if d == nil {
					continue
				}
				all++
				switch {
				case d.Worse:
					worse++
				case d.Found:
					better++
				case d.Test == "":
					few, all = few+1, all-1
				}
				if size := math.Abs(math.Log(d.Ratio)); d.Found && size >= most {
					largest, most = fmt.Sprintf(" The largest change: %s, %s %s.", l.ID, t.Title(), d.change()), size
				}
			}
		}
		found := fmt.Sprintf("%d of %d figures got worse, %d better.%s", worse, all, better, largest)
		switch {
		case all == 0 && few > 0:
			found = "not certain: fewer than three networks."
		case largest == "":
			found = fmt.Sprintf("no difference found in %d figures.", all)
		}
		out = append(out, fmt.Sprintf("%s against %s: %s", name, c.Names[0], found))
	}
	if len(c.Differs) == 0 {
		return append(out, "Machine, versions and settings are the same.")
	}
	names := convert(c.Differs, func(p property) string { return p.Name })
	return append(out, fmt.Sprintf("Machine and settings differ in %s (%d, listed below).",
		strings.Join(names[:min(len(names), 3)], ", "), len(names)))
}

func (c *Comparison) table(t *comparedTable, wide bool) Table {
	lines := slices.Clone(t.Lines)
	if len(t.Geomean) > 0 {
		mean := comparedLine{ID: "geomean"}
		for i, v := range t.Geomean {
			mean.Figures = append(mean.Figures, &comparedFigure{Median: v, CI95: &[2]float64{}})
			if i > 0 {
				ci := t.GeomeanCI95[i-1]
				mean.Deltas = append(mean.Deltas, &delta{Ratio: v / t.Geomean[0], CI95: ci,
					Found: ci != nil && (ci[0] > 1 || ci[1] < 1)})
			}
		}
		lines = append(lines, mean)
	}
	direction := "more is better"
	if t.LessIsBetter {
		direction = "less is better"
	}
	out := Table{Title: fmt.Sprintf("%s, %s, %s (%s)", t.Suite, t.Title(), t.Unit, direction),
		Columns: []Column{left(0, "row")}}
	for i, name := range c.Names {
		out.Columns = append(out.Columns, right(0, name))
		if i > 0 {
			out.Columns = append(out.Columns, right(0, "delta"), right(0, "95 % interval"), right(0, "p"))
			if wide {
				out.Columns = append(out.Columns, right(0, "test"))
			}
		}
	}
	for _, l := range lines {
		cells := []any{l.ID, l.Figures[0].String()}
		for i, d := range l.Deltas {
			cells = append(cells, l.Figures[i+1].String())
			change, span, p, test := "", "", "", ""
			if d != nil {
				change = d.change()
			}
			if d != nil && d.CI95 != nil {
				span = signed(d.CI95[0]) + " to " + signed(d.CI95[1])
			}
			if d != nil && d.Test != "" { // neither a mean nor a row of a few networks has one
				p, test = strconv.FormatFloat(d.P, 'f', 3, 64), fmt.Sprintf("%s, %d and %d %s", d.Test, d.Old, d.New, d.Over)
				if d.P < 0.001 {
					p = "<0.001"
				}
			}
			if cells = append(cells, change, span, p); wide {
				cells = append(cells, test)
			}
		}
		out.add(Line{}, cells...)
	}
	return out
}

// String prints a figure with the half-width of its interval; of a mean, whose interval is 0, alone.
func (f *comparedFigure) String() string {
	switch {
	case f == nil:
		return None
	case f.CI95 == nil || f.Median == 0:
		return Digits(f.Median) + " ± ∞"
	case *f.CI95 == [2]float64{}:
		return Digits(f.Median)
	}
	half := max(f.CI95[1]-f.Median, f.Median-f.CI95[0]) / math.Abs(f.Median)
	if half > 1 {
		return Digits(f.Median) + " ± >100 %"
	}
	return Digits(f.Median) + " ± " + percent("%.*f", half)
}

// change prints a difference, or how far the interval of one that was not found reaches.
func (d *delta) change() string {
	switch ci := d.CI95; {
	case d.Found:
		return signed(d.Ratio)
	case ci == nil || ci[0] > 1 || ci[1] < 1:
		return "not certain"
	default:
		return "within " + strings.TrimPrefix(signed(1+max(ci[1]-1, 1-ci[0])), "+")
	}
}

func signed(ratio float64) string {
	if ratio >= 2 {
		return factor(ratio)
	}
	return percent("%+.*f", ratio-1)
}

func percent(verb string, share float64) string {
	return fmt.Sprintf(verb+" %%", percentPlaces(share), share*100)
}

func (c *Comparison) notes() []string {
	over := map[string]bool{} // by test
	unknown, zero := false, false
	for _, t := range c.Tables {
		for _, l := range t.Lines {
			for i, d := range l.Deltas {
				if d != nil {
					over[d.Test] = true
					zero = zero || d.Test == mannWhitney && d.CI95 == nil && l.Figures[0].CI95 != nil && l.Figures[i+1].CI95 != nil
				}
			}
			for _, f := range l.Figures {
				unknown = unknown || f != nil && f.CI95 == nil
			}
		}
	}
	var tests, out []string
	text := map[string]string{welchT: "Welch's t over the log medians of labs", mannWhitney: "Mann-Whitney U over samples"}
	for _, test := range slices.Sorted(maps.Keys(over)) {
		if test != "" {
			tests = append(tests, text[test])
		}
	}
	if over[""] {
		out = append(out, "Without p, not certain: fewer than three networks.")
	}
	if len(tests) > 0 {
		out = append(out, "within or not certain: no difference found (p ≥ 0.05). p: "+strings.Join(tests, "; ")+
			"; corrected for the number of differences in the table (Holm). Each interval is of one row alone.")
	}
	if unknown {
		out = append(out, "± ∞ too few labs or samples for a 95 % interval.")
	}
	if zero {
		out = append(out, "A row with a sample of 0 lacks an interval of its difference.")
	}
	return out
}

const mostAbsent = 4 // how many rows that a run lacks are named

// absent has a sentence for each run and reason that rows lack. A suite that a run lacks is named, and not its rows.
func (c *Comparison) absent(wide bool) []string {
	var by byReason[string]
	for _, m := range c.Missing {
		reason := "Not in " + m.Run
		if m.Reason != "" {
			reason += ", " + m.Reason
		}
		what := m.ID + " " + m.Title()
		if !c.measured[[2]string{m.Run, m.Suite}] {
			what = "suite " + m.Suite
		}
		if !slices.Contains(by.items[reason], what) {
			by.add(reason, what)
		}
	}
	return by.texts(func(reason string, rows []string) string {
		if shown := rows[:min(len(rows), mostAbsent)]; !wide && len(shown) < len(rows) {
			return fmt.Sprintf("%s: %s and %d more (-o wide).", reason, strings.Join(shown, ", "), len(rows)-len(shown))
		}
		return reason + ": " + strings.Join(rows, ", ") + "."
	})
}
