// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/report/facts"
	"mustang/internal/report/format"
	"mustang/internal/result"
)

// tooNoisy is the distance from 1 of a ratio's interval from which a run is too noisy.
const tooNoisy = 0.05

// noise tells that the run is too noisy to answer; empty if it is not. Paths in the kernel
// tell it, by rows that were measured twice or by all comparisons: others are noisy on any
// machine.
func (st *suiteTables) noise() string {
	var worst spread
	var halves []float64
	kind, name := "", ""
	for _, t := range st.workloads {
		for _, class := range []string{"", result.ClassKernel} {
			if s := t.spreads[class]; s.known() && s.share > worst.share {
				worst, kind, name = s, among(class), format.LowerFirst(t.name)
			}
		}
		for _, c := range t.comparisons {
			if c.CI95 != nil && c.Ratio > 0 && !c.AA && !c.Ranking && cmp.Or(c.Class, result.ClassKernel) == result.ClassKernel {
				halves = append(halves, (c.CI95[1]-c.CI95[0])/2/c.Ratio)
			}
		}
	}
	slices.Sort(halves)
	switch {
	case worst.share > tooNoisy:
		by := format.Percent(worst.share)
		if worst.factor >= 2 {
			by = "a factor of " + format.Number(worst.factor, 1)
		}
		return fmt.Sprintf("This run is too noisy: the same path%s measured twice may differ by %s in %s.%s", kind, by, name, repeatIt)
	case len(halves) > 0 && halves[len(halves)/2] > tooNoisy:
		return "This run is too noisy: half of its comparisons of paths in the kernel are uncertain by " + format.Percent(halves[len(halves)/2]) + " or more." + repeatIt
	}
	return ""
}

// repeatIt ends a remark on noise.
const repeatIt = " Repeat it on a quiet machine."

// addDisturbances adds what disturbed the run to what the only suite says of noise, or warns of
// it: one line has both.
func (r *Report) addDisturbances(disturbances string) {
	switch {
	case disturbances == "":
	case len(r.Suites) == 1:
		suite := &r.Suites[0]
		suite.Noise = strings.TrimSpace(strings.TrimSuffix(suite.Noise, repeatIt)+" "+disturbances) + repeatIt
	default:
		r.Warnings = append(r.Warnings, disturbances+facts.RepeatRun)
	}
}

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
