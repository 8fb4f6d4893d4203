// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// Table is a table by columns.
type Table struct {
	ID, Title string // the ID is unique in the report; empty where nothing refers to the table
	Columns   []Column
	Lines     []Line // the styles of the lines, in the cells' order
	Notes     []string
}

// Column is a heading with the cells below it.
type Column struct {
	Head  []string // the heading, one string per line
	Right bool     // aligns figures
	// Rank is the order in which a narrow table leaves columns out: the highest first, 0 never. The page leaves out
	// ranks from [RankDetail] on.
	Rank   int
	Marked bool // reserves space for the marks of the column's cells
	Joined bool // leaves the column out of a narrow table if the one before is left out
	Cells  []Cell
}

// RankDetail is the rank of columns that a wide terminal alone has.
const RankDetail = 9

// Title is the heading on one line.
func (c Column) Title() string {
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(c.Head, " ")), "/ ", "/")
}

// Cell is a text with the mark behind it ("~", "?" or empty). A cell with a color of its own has the color's name or
// a row's status as Class.
type Cell struct{ Text, Mark, Class string }

// Line is how a line of a table looks.
type Line struct {
	Status string // "ok", "skipped" or "failed"
	Color  string // of the row's series, see package result
	First  bool   // whether the line starts a group
	Path   int    // the place of the row's path in the suite's Traces, from 1 on; 0 if it was not traced
	Rank   int    // order in which a short table leaves lines out: the highest first
}

// left makes a column of texts, right one of figures, and marked one of ratios with their marks.
func left(rank int, head ...string) Column  { return Column{Head: head, Rank: rank} }
func right(rank int, head ...string) Column { return Column{Head: head, Rank: rank, Right: true} }

func marked(rank int, head ...string) Column {
	return Column{Head: head, Rank: rank, Right: true, Marked: true}
}

func (t *Table) add(line Line, cells ...any) {
	t.Lines = append(t.Lines, line)
	for i, c := range cells {
		cell, ok := c.(Cell)
		if !ok {
			cell.Text = c.(string)
		}
		t.Columns[i].Cells = append(t.Columns[i].Cells, cell)
	}
}

// Keep returns the table with some of its lines.
func (t Table) Keep(lines []int) Table {
	all := t.Lines
	t.Lines = convert(lines, func(at int) Line { return all[at] })
	t.Columns = convert(t.Columns, func(c Column) Column {
		cells := c.Cells
		c.Cells = convert(lines, func(at int) Cell { return cells[at] })
		return c
	})
	return t
}

func (t *Table) trimmed() *Table {
	t.Columns = filter(t.Columns, func(c Column) bool {
		return slices.ContainsFunc(c.Cells, func(cell Cell) bool {
			return cell.Text != "" && !(c.Right && cell.Text == None)
		})
	})
	return t
}

// legend explains the signs in the table's columns of figures; where rows took turns, verdicts are Holm's.
func (t *Table) legend(holm bool) []string {
	none := "~\u00a0no difference found."
	if holm {
		none = "~\u00a0not significant (Holm-corrected)."
	}
	var parts []string
	for _, sign := range [][2]string{{"~", none}, {"?", "?\u00a0too few rounds."},
		{"±", "±\u00a0the longer side of the 95\u00a0% interval."}} {
		has := func(c Cell) bool { return strings.Contains(c.Text+c.Mark, sign[0]) }
		if slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Right && slices.ContainsFunc(c.Cells, has) }) {
			parts = append(parts, sign[1])
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{strings.Join(parts, " ")}
}

func (t *workload) line(e *entry) Line { return Line{Status: e.Status, Color: t.kindOf(e).Color} }

func (t *workload) comparisonTable() *Table {
	done := func(aa bool) []result.Comparison {
		return filter(t.comparisons, func(c result.Comparison) bool { return c.AA == aa && c.RoundsDone() > 0 })
	}
	out := &Table{ID: "compare-" + t.anchor, Title: t.name, Columns: []Column{left(0, "rows"), marked(0, "ratio"),
		right(1, "95 % interval"), right(2, "rounds"), right(RankDetail, "over"), right(RankDetail, "p"),
		right(RankDetail, "p, adjusted"), left(3, "of")}}
	for _, c := range append(done(false), done(true)...) {
		line, ratio := Line{Status: result.StatusOK, First: true}, Cell{Text: Number(c.Ratio, 3)}
		if e := t.byID[c.Numerator]; e != nil {
			line.Color = t.kindOf(e).Color
		}
		if !c.AA {
			ratio.Mark = judge(c).verdict.mark()
		}
		p, adjusted := None, None
		if c.Over != "" {
			p, adjusted = general(c.P), general(c.AdjustedP)
		}
		out.add(line, comparisonName(c), ratio, intervalText(c.CI95, 3), integer(c.RoundsDone()), c.Over, p, adjusted,
			t.comparedFor(c))
	}
	if len(out.Lines) == 0 {
		return nil
	}
	out.Notes = out.legend(t.turns())
	return out.trimmed()
}

// comparedFor returns the subject of a comparison: its question, or the caption under which the suite states it.
func (t *workload) comparedFor(c result.Comparison) string {
	if text := questions[c.Asks]; text != "" {
		return text
	}
	for _, s := range t.suite.Statements {
		for _, p := range s.Pairs {
			if p.Numerator == c.Numerator && p.Denominator == c.Denominator {
				return strings.TrimSuffix(s.Caption+", "+spelt(p.Label), ", ")
			}
		}
	}
	return ""
}

// questions names the subject of comparisons, by [result.Comparison.Asks].
var questions = map[string]string{
	result.AsksRank: "the best link", result.AsksProxy: "cost of all traffic",
	result.AsksService: "cost of a Service on top", result.AsksTotal: "both costs", result.AsksBigTCP: "BIG TCP",
}

func comparisonName(c result.Comparison) string {
	name := c.Numerator + " over " + c.Denominator
	above, rest, cut := strings.Cut(c.Numerator, "/")
	if below, target, _ := strings.Cut(c.Denominator, "/"); cut && above == below && rest != "" && target != "" {
		name = above + ": " + rest + " over " + target
	}
	if c.AA {
		name = "A/A: " + name
	}
	return name
}
