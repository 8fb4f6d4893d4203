// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// statedDifference is the difference of a pair of rows that both have a figure.
type statedDifference struct {
	label string
	color string // of the first row's series
	difference
}

// differences compares a statement's pairs.
func (t *workloadTable) differences(st result.Statement) []statedDifference {
	var out []statedDifference
	for _, p := range st.Pairs {
		a, b := t.byID[p.Numerator], t.byID[p.Denominator]
		if a != nil && b != nil && a.ok() && b.ok() {
			out = append(out, statedDifference{format.Spelt(format.Clean(p.Label)), t.kindOf(a).Color, t.difference(a, b)})
		}
	}
	return out
}

// statements puts the suite's statements in words, except those without a figure.
func (t *workloadTable) statements() []string { return t.inWords(t.suite.Statements) }

// inWords puts some statements in words, except those without a figure.
func (t *workloadTable) inWords(statements []result.Statement) []string {
	var out []string
	for _, st := range statements {
		all := t.differences(st)
		var parts []string
		if st.Range {
			parts = t.ranges(all)
		} else {
			for _, d := range all {
				parts = append(parts, strings.TrimPrefix(d.label+": ", ": ")+t.describe(d.difference))
			}
		}
		if len(parts) > 0 {
			out = append(out, format.Clean(st.Caption)+": "+strings.Join(parts, "; ")+".")
		}
	}
	return out
}

// ranges gives the least and the greatest of the differences in each direction.
func (t *workloadTable) ranges(all []statedDifference) []string {
	var parts []string
	for _, v := range []verdict{lower, higher, tied, tooFew} {
		group := slices.DeleteFunc(slices.Clone(all), func(d statedDifference) bool { return d.verdict != v })
		if len(group) == 0 {
			continue
		}
		slices.SortStableFunc(group, func(a, b statedDifference) int { return cmp.Compare(math.Abs(a.ratio-1), math.Abs(b.ratio-1)) })
		var labels []string
		for _, d := range group {
			labels = append(labels, d.label)
		}
		first, last := group[0], group[len(group)-1]
		widest := slices.MaxFunc(group, func(a, b statedDifference) int { return cmp.Compare(a.reach(), b.reach()) })
		switch {
		case v == tied || v == tooFew:
			parts = append(parts, t.describe(widest.difference)+": "+strings.Join(labels, ", "))
		case len(group) == 1:
			parts = append(parts, first.label+" "+t.describe(first.difference))
		default:
			parts = append(parts, fmt.Sprintf("%s (%s) to %s", format.Amount(first.ratio), first.label,
				t.wording.describe(v, last.ratio)+" ("+last.label+")"))
		}
	}
	return parts
}

// tally gives the range of the ratios that are tallied, and how many are claimed.
func (t *workloadTable) tally() string {
	var all []statedDifference
	for _, st := range t.suite.Statements {
		if st.Tally {
			all = append(all, t.differences(st)...)
		}
	}
	if len(all) == 0 {
		return "no row of " + format.Clean(t.suite.Subject) + " has a figure beside one of " + format.Clean(t.suite.Object) + "."
	}
	least, most := extent(all)
	outcome := unclaimed(all)
	if _, better, worse := t.tallied(); better+worse > 0 {
		outcome = fmt.Sprintf(" in %s; better in %d, worse in %d", format.Count(len(all), "pair"), better, worse)
	}
	return format.Clean(t.suite.Subject) + ": " + format.Shares(least, most) + " of " + format.Clean(t.suite.Object) + outcome + "."
}

// tallied counts the pairs of the tallied statements, and those in which the suite's subject
// is better or worse than its object.
func (t *workloadTable) tallied() (total, better, worse int) {
	for _, statement := range t.suite.Statements {
		if !statement.Tally {
			continue
		}
		for _, d := range t.differences(statement) {
			total++
			switch {
			case d.verdict != lower && d.verdict != higher:
			case t.wording.worse(d.verdict):
				worse++
			default:
				better++
			}
		}
	}
	return total, better, worse
}
