// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/report"
	"mustang/internal/result"
	"mustang/internal/result/compare"
)

// comparisonCells returns the heading and the lines of a table of a comparison: for each row the
// figures with the half-width of their intervals, and the differences, with a bound where none
// was found. Wide tables also have the tests.
func comparisonCells(c *compare.Comparison, t compare.Table, wide bool) (head []string, lines [][]string) {
	head = []string{"row", c.Names[0]}
	for _, name := range c.Names[1:] {
		head = append(head, name, "delta", "95 % interval", "p")
		if wide {
			head = append(head, "test")
		}
	}
	for _, l := range t.Lines {
		line := []string{Plain(l.ID), figure(l.Figures[0])}
		for i, d := range l.Deltas {
			line = append(line, figure(l.Figures[i+1]))
			line = append(line, change(d, wide)...)
		}
		lines = append(lines, line)
	}
	if len(t.Geomean) > 0 {
		line := []string{"geomean", digits(t.Geomean[0])}
		for i, mean := range t.Geomean[1:] {
			line = append(line, digits(mean))
			line = append(line, meanChange(mean/t.Geomean[0], t.GeomeanCI95[i])...)
			if wide {
				line = append(line, "")
			}
		}
		lines = append(lines, line)
	}
	for i := range head {
		head[i] = Plain(head[i])
	}
	return head, lines
}

func change(d *compare.Delta, wide bool) []string {
	cells := make([]string, 3, 4)
	if wide {
		cells = cells[:4]
	}
	if d == nil {
		return cells
	}
	cells[0] = bound(d.CI95)
	if d.Found {
		cells[0] = signed(d.Ratio)
	}
	if d.CI95 != nil {
		cells[1] = span(d.CI95)
	}
	cells[2] = probability(d.P)
	if wide {
		cells[3] = fmt.Sprintf("%s, %d and %d %s", d.Test, d.Old, d.New, d.Over)
	}
	return cells
}

func meanChange(ratio float64, ci *[2]float64) []string {
	switch {
	case ci == nil:
		return []string{bound(ci), "", ""}
	case ci[0] <= 1 && ci[1] >= 1:
		return []string{bound(ci), span(ci), ""}
	}
	return []string{signed(ratio), span(ci), ""}
}

// bound prints how far an interval with 1 in it reaches; another one, or none, is not certain.
func bound(ci *[2]float64) string {
	if ci == nil || ci[0] > 1 || ci[1] < 1 {
		return "not certain"
	}
	return "within " + strings.TrimPrefix(signed(1+max(ci[1]-1, 1-ci[0])), "+")
}

func span(ci *[2]float64) string { return signed(ci[0]) + " to " + signed(ci[1]) }

func figure(f *compare.Figure) string {
	switch {
	case f == nil:
		return "–"
	case f.CI95 == nil || f.Median == 0:
		return digits(f.Median) + " ± ∞"
	}
	half := max(f.CI95[1]-f.Median, f.Median-f.CI95[0]) / math.Abs(f.Median)
	if half > 1 {
		return digits(f.Median) + " ± >100 %"
	}
	return digits(f.Median) + " ± " + percent("%.*f", half)
}

// digits prints a number to four digits, or to all before the point.
func digits(v float64) string {
	places := 0
	if v != 0 {
		places = min(max(3-int(math.Floor(math.Log10(math.Abs(v)))), 0), 6)
	}
	return report.Number(v, places)
}

// signed prints a ratio as a change in per cent, and as a factor from 2 on.
func signed(ratio float64) string {
	if ratio >= 2 {
		return report.Factor(ratio)
	}
	return percent("%+.*f", ratio-1)
}

// percent prints a share to a tenth of a per cent, or to a hundredth if it is small.
func percent(verb string, share float64) string {
	places := 1
	if math.Abs(share) < 0.00095 {
		places = 2
	}
	return fmt.Sprintf(verb+" %%", places, share*100)
}

func probability(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return strconv.FormatFloat(p, 'f', 3, 64)
}

func comparisonTitle(t compare.Table) string {
	load := result.Key{Workload: t.Workload, Flows: t.Flows, Setup: t.Setup}.Title()
	direction := "more is better"
	if t.LessIsBetter {
		direction = "less is better"
	}
	return Plain(fmt.Sprintf("%s, %s, %s (%s)", t.Suite, load, t.Unit, direction))
}

// comparisonFooter explains the marks and names the tests of a comparison.
func comparisonFooter(c *compare.Comparison) []string {
	over := map[string]bool{}
	unknown, zero := false, false
	for _, t := range c.Tables {
		for _, l := range t.Lines {
			for i, d := range l.Deltas {
				if d != nil {
					over[d.Over] = true
					zero = zero || d.CI95 == nil && l.Figures[0].CI95 != nil && l.Figures[i+1].CI95 != nil
				}
			}
			for _, f := range l.Figures {
				unknown = unknown || f != nil && f.CI95 == nil
			}
		}
	}
	var tests, out []string
	for _, level := range []string{compare.Labs, compare.Processes, compare.Connections} {
		if over[level] {
			tests = append(tests, "Welch's t over the log means of "+level)
		}
	}
	if over[compare.Samples] {
		tests = append(tests, "Mann-Whitney U over samples")
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

// comparisonWarnings returns a sentence on each run that is quick, disturbed or noisy.
func comparisonWarnings(c *compare.Comparison) []string {
	var out []string
	for _, w := range c.Warnings {
		out = append(out, Plain(w.Run+": "+strings.Join(w.Texts, "; ")+"."))
	}
	return out
}

// absentRows returns a sentence for each run and reason that rows lack. A suite that a run lacks is
// named, and not its rows.
func absentRows(c *compare.Comparison) []string {
	var order []string
	rows := map[string][]string{}
	for _, m := range c.Missing {
		why := fmt.Sprintf("Not in %s", m.Run)
		if m.Reason != "" {
			why += ", " + m.Reason
		}
		if rows[why] == nil {
			order = append(order, why)
		}
		what := m.ID + " " + result.Key{Workload: m.Workload, Flows: m.Flows, Setup: m.Setup}.Title()
		if c.Lacks(m.Run, m.Suite) {
			what = "suite " + m.Suite
		}
		if !slices.Contains(rows[why], what) {
			rows[why] = append(rows[why], what)
		}
	}
	var out []string
	for _, why := range order {
		out = append(out, Plain(why+": "+strings.Join(rows[why], ", ")+"."))
	}
	return out
}

// ComparisonCSV writes a line for each row and each run that is compared with the old one.
func ComparisonCSV(w io.Writer, c *compare.Comparison) error {
	lines := [][]string{{
		"suite", "row", "workload", "flows", "unit", "old_run", "new_run", "old", "old_ci95_low", "old_ci95_high", "new",
		"new_ci95_low",
		"new_ci95_high", "ratio", "ratio_ci95_low", "ratio_ci95_high", "p", "test", "over", "old_units", "new_units",
		"found", "worse",
	}}
	ends := func(ci *[2]float64) []string {
		if ci == nil {
			return []string{"", ""}
		}
		return []string{plainNumber(ci[0]), plainNumber(ci[1])}
	}
	for _, t := range c.Tables {
		for _, l := range t.Lines {
			for i, d := range l.Deltas {
				if d == nil {
					continue
				}
				old, now := l.Figures[0], l.Figures[i+1]
				lines = append(lines, slices.Concat(
					[]string{t.Suite, l.ID, t.Workload, strconv.Itoa(t.Flows), t.Unit, c.Names[0], c.Names[i+1],
						plainNumber(old.Median)}, ends(old.CI95),
					[]string{plainNumber(now.Median)}, ends(now.CI95), []string{plainNumber(d.Ratio)}, ends(d.CI95),
					[]string{plainNumber(d.P), d.Test, d.Over, strconv.Itoa(d.Old), strconv.Itoa(d.New), strconv.FormatBool(d.Found),
						strconv.FormatBool(d.Worse)}))
			}
		}
	}
	return WriteCSV(w, lines)
}

// ComparisonMarkdown writes the warnings, what differs between the runs, the tables, and the rows that
// are not in all of them.
func ComparisonMarkdown(w io.Writer, c *compare.Comparison) error {
	var b strings.Builder
	table := func(title string, head []string, lines [][]string) {
		escaped := make([][]string, len(lines)+1)
		for i, line := range append([][]string{head}, lines...) {
			for _, cell := range line {
				escaped[i] = append(escaped[i], escape(cell))
			}
		}
		markdownTable(&b, escape(title), escaped)
	}
	for _, warning := range comparisonWarnings(c) {
		b.WriteString(escape(warning) + "\n\n")
	}
	if head, lines := differing(c); len(lines) > 0 {
		table("What differs", head, lines)
	}
	for _, t := range c.Tables {
		head, lines := comparisonCells(c, t, false)
		table(comparisonTitle(t), head, lines)
	}
	b.WriteString(escape(strings.Join(slices.Concat(absentRows(c), comparisonFooter(c)), " ")) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// differing are the heading and the lines of the table of what differs between the runs.
func differing(c *compare.Comparison) (head []string, lines [][]string) {
	for _, p := range c.Differs {
		lines = append(lines, append([]string{p.Name}, p.Values...))
	}
	return append([]string{""}, c.Names...), lines
}
