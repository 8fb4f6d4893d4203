// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/result"
)

// column makes a column of a table, with a cell for each item. On the right are figures.
type column[T any] struct {
	rank                  int
	right, marked, joined bool
	head                  []string
	cell                  func(T) Cell
}

func texts[T any](rank int, text func(T) string, head ...string) column[T] {
	return column[T]{rank: rank, head: head, cell: func(item T) Cell { return Cell{Text: text(item)} }}
}

// numbers makes a column of texts on the right.
func numbers[T any](rank int, text func(T) string, head ...string) column[T] {
	c := texts(rank, text, head...)
	c.right = true
	return c
}

// marks makes a column of ratios with their marks.
func marks[T any](rank int, cell func(T) Cell, head ...string) column[T] {
	return column[T]{rank: rank, right: true, marked: true, head: head, cell: cell}
}

// known makes a column of texts for rows with a figure.
func known(rank int, text func(*entry) string, head ...string) column[*entry] {
	return numbers(rank, func(e *entry) string {
		if !e.ok() {
			return None
		}
		return text(e)
	}, head...)
}

// figures makes a column of figures of rows with three significant digits.
func figures(rank int, value func(*entry) float64, head ...string) column[*entry] {
	return known(rank, func(e *entry) string { return positive(value(e)) }, head...)
}

// allColumns makes columns with a cell for each item.
func allColumns[T any](items []T, columns ...column[T]) (out []Column) {
	for _, c := range columns {
		made := Column{Head: c.head, Rank: c.rank, Right: c.right, Marked: c.marked, Joined: c.joined}
		for _, item := range items {
			made.Cells = append(made.Cells, c.cell(item))
		}
		out = append(out, made)
	}
	return out
}

// columnsOf makes columns, but none without any text, and none of figures without a figure.
func columnsOf[T any](items []T, columns ...column[T]) []Column {
	return filter(allColumns(items, columns...), func(c Column) bool {
		return len(items) == 0 && !c.Right || slices.ContainsFunc(c.Cells, func(cell Cell) bool {
			return cell.Text != "" && !(c.Right && cell.Text == None)
		})
	})
}

// table has a line for each of the entries.
func (t *workload) table(id, title string, entries []*entry, columns ...column[*entry]) *Table {
	out := &Table{ID: id, Title: title, Columns: columnsOf(entries, columns...)}
	for _, e := range entries {
		out.Lines = append(out.Lines, Line{Status: e.Status, Color: t.kindOf(e).Color})
	}
	return out
}

// legend explains the signs in the table's columns of figures; where rows took turns, verdicts are Holm's.
func (t *Table) legend(holm bool) []string {
	none := map[bool]string{true: "~\u00a0not significant (Holm-corrected).", false: "~\u00a0no difference found."}[holm]
	var parts []string
	for _, sign := range [][2]string{{"~", none}, {"?", "?\u00a0too few rounds."},
		{"±", "±\u00a0half of the 95\u00a0% interval."}} {
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

// comparisonTable has a line for each comparison in the file's order, A/A last; nil without comparisons.
func (t *workload) comparisonTable() *Table {
	all := filter(t.comparisons, func(c result.Comparison) bool { return c.RoundsDone() > 0 })
	if len(all) == 0 {
		return nil
	}
	aa := map[bool]int{true: 1}
	slices.SortStableFunc(all, func(a, b result.Comparison) int { return aa[a.AA] - aa[b.AA] })
	turns := func(value func(result.Comparison) string, head ...string) column[result.Comparison] {
		return numbers(RankDetail, func(c result.Comparison) string {
			if c.Over == "" {
				return None
			}
			return value(c)
		}, head...)
	}
	ratios := marks(0, func(c result.Comparison) Cell {
		if c.AA {
			return Cell{Text: Number(c.Ratio, 3)}
		}
		return Cell{Text: Number(c.Ratio, 3), Mark: judge(c).verdict.mark()}
	}, "ratio")
	out := &Table{ID: "compare-" + t.anchor, Title: t.name, Columns: columnsOf(all,
		texts(0, comparisonName, "rows"), ratios,
		numbers(1, func(c result.Comparison) string { return intervalText(c.CI95, 3) }, "95 % interval"),
		numbers(2, func(c result.Comparison) string { return integer(c.RoundsDone()) }, "rounds"),
		numbers(RankDetail, func(c result.Comparison) string { return c.Over }, "over"),
		turns(func(c result.Comparison) string { return general(c.P) }, "p"),
		turns(func(c result.Comparison) string { return general(c.AdjustedP) }, "p, adjusted"),
		texts(3, t.comparedFor, "of"))}
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

// comparedFor returns what a comparison is about: its question, or the caption under which the suite states it.
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

// questions are what comparisons are of, by [result.Comparison.Asks].
var questions = map[string]string{
	result.AsksRank: "the best link", result.AsksProxy: "cost of all traffic",
	result.AsksService: "cost of a Service on top", result.AsksTotal: "both costs", result.AsksBigTCP: "BIG TCP",
}

// comparisonName names a comparison by its rows.
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
