// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"

	"mustang/internal/result"
)

// statesPairs reports whether the suite's answer is the ratios of stated pairs, and no row
// competes with all others.
func (st *suiteTables) statesPairs() bool { return st.Answer[0] == result.AnswerStatements }

// statedRatio returns the ratio of the stated pair whose numerator is a row; ok is false if
// there is none.
func (t *workloadTable) statedRatio(e *entry) (d difference, ok bool) {
	for _, statement := range t.suite.Statements {
		for _, pair := range statement.Pairs {
			if of := t.byID[pair.Denominator]; pair.Numerator == e.ID && of != nil && of.ok() && e.ok() {
				return t.difference(e, of), true
			}
		}
	}
	return d, false
}

// statedRange gives the least and the greatest of the ratios of stated pairs.
func (t *workloadTable) statedRange() string {
	least, greatest, n := math.Inf(1), 0.0, 0
	for _, e := range t.measured() {
		if d, ok := t.statedRatio(e); ok {
			least, greatest, n = min(least, d.ratio), max(greatest, d.ratio), n+1
		}
	}
	switch n {
	case 0:
		return "no pair has figures."
	case 1:
		return "a ratio of " + ratioText(least, 2) + "."
	}
	return fmt.Sprintf("ratios of %s to %s in %d pairs.", ratioText(least, 2), ratioText(greatest, 2), n)
}
