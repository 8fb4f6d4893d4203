// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
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

// stated sums up the suite's statements that have words for it, a sentence each.
func (t *workloadTable) stated() []string {
	var out []string
	for _, st := range t.suite.Statements {
		all := t.differences(st)
		if st.Subject == "" || len(all) == 0 {
			continue
		}
		if len(all) <= 2 && all[0].label != "" && !st.Range {
			of := map[bool]string{true: ", ", false: ": "}[len(all) == 1]
			out = append(out, t.name+", "+format.Clean(st.Caption)+of+pairwise(all)+".")
			continue
		}
		least, most := extent(all)
		is := "is"
		claimed := slices.ContainsFunc(all, func(d statedDifference) bool { return d.verdict == lower || d.verdict == higher })
		switch {
		case !claimed:
			is = "was"
		case most < 1:
			is = "falls to"
		case least > 1:
			is = "rises to"
		}
		out = append(out, fmt.Sprintf("%s %s %s %s of that %s%s.", t.name, format.Clean(st.Subject), is, format.Shares(least, most), format.Clean(st.Object), unclaimed(all)))
	}
	if len(out) == 0 {
		return []string{t.name + ": no pair has figures."}
	}
	return out
}

// extent returns the least and the greatest ratio of differences.
func extent(all []statedDifference) (least, most float64) {
	least = math.Inf(1)
	for _, d := range all {
		least, most = min(least, d.ratio), max(most, d.ratio)
	}
	return least, most
}

// pairwise gives the ratio of each of a few pairs, or why none is claimed.
func pairwise(all []statedDifference) string {
	var parts []string
	for _, d := range all {
		found := format.Shares(d.ratio, d.ratio)
		switch {
		case d.verdict == tied:
			found = "no difference over " + percentUp(d.reach())
		case d.verdict == tooFew:
			found = "too few rounds to tell"
		}
		parts = append(parts, d.label+": "+found)
	}
	return strings.Join(parts, "; ")
}

// unclaimed counts pairs, and those of them in which no difference is claimed.
func unclaimed(all []statedDifference) string {
	n := map[verdict]int{}
	for _, d := range all {
		n[d.verdict]++
	}
	text := " in " + format.Count(len(all), "pair")
	for i, some := range []int{n[tied], n[tooFew]} {
		words := []string{"no difference is certain", "too few rounds to tell"}[i]
		switch some {
		case 0:
		case len(all):
			text += ": " + words
		default:
			text += fmt.Sprintf("; in %d %s", some, words)
		}
	}
	return text
}
