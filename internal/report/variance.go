// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"slices"
	"strconv"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// varianceColumns are the columns of wide tables on comparisons of rows that took turns.
type varianceColumns struct {
	known   bool // whether there is such a comparison
	columns []Column
}

// newVarianceColumns makes the columns without cells.
func newVarianceColumns() *varianceColumns {
	v := &varianceColumns{}
	for _, head := range [][]string{
		{"", "verdict"}, {"", "over"}, {"", "p"}, {"p,", "adjusted"},
		{"% of", "labs"}, {"variance:", "processes"}, {"", "connections"}, {"", "rounds"},
	} {
		v.columns = append(v.columns, Column{Head: head, Rank: 3, Wide: true, Right: true})
	}
	return v
}

// add adds the cells of a comparison.
func (v *varianceColumns) add(c result.Comparison) {
	cells := slices.Repeat([]string{format.None}, len(v.columns))
	if c.Over != "" {
		v.known = true
		cells = []string{format.Clean(cmp.Or(c.Verdict, format.None)), format.Clean(c.Over), probability(c.P), probability(c.AdjustedP)}
		for _, share := range []float64{c.Shares.Lab, c.Shares.Process, c.Shares.Connection, c.Shares.Round} {
			cells = append(cells, format.Number(100*share, 0))
		}
	}
	for i := range v.columns {
		v.columns[i].Cells = append(v.columns[i].Cells, Cell{Text: cells[i]})
	}
}

// probability prints a p-value with two digits.
func probability(p float64) string { return strconv.FormatFloat(p, 'g', 2, 64) }
