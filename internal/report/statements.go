// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// statedDifference is the difference of a pair of rows that both have a figure.
type statedDifference struct {
	label string
	difference
}

// differences compares a statement's pairs.
func (t *workloadTable) differences(st result.Statement) []statedDifference {
	var out []statedDifference
	for _, p := range st.Pairs {
		a, b := t.byID[p.Numerator], t.byID[p.Denominator]
		if a != nil && b != nil && a.ok() && b.ok() {
			out = append(out, statedDifference{clean(p.Label), t.difference(a, b)})
		}
	}
	return out
}

// statements puts the suite's statements in words, except those without a figure.
func (t *workloadTable) statements() []string {
	var out []string
	for _, st := range t.suite.Statements {
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
			out = append(out, clean(st.Caption)+": "+strings.Join(parts, "; ")+".")
		}
	}
	return out
}

// ranges gives the least and the greatest of the differences in each direction.
func (t *workloadTable) ranges(all []statedDifference) []string {
	var parts []string
	for _, v := range []verdict{lower, higher, tied, unclear, tooFew} {
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
		switch {
		case v == tied || v == unclear || v == tooFew:
			parts = append(parts, t.describe(first.difference)+" ("+strings.Join(labels, ", ")+")")
		case len(group) == 1:
			parts = append(parts, first.label+" "+t.describe(first.difference))
		default:
			parts = append(parts, fmt.Sprintf("%s (%s) to %s", amount(first.ratio), first.label,
				t.wording.describe(v, last.ratio)+" ("+last.label+")"))
		}
	}
	return parts
}

// tally counts the verdicts on the pairs of the statements that are marked for it.
func (t *workloadTable) tally() string {
	n := map[verdict]int{}
	total := 0
	for _, st := range t.suite.Statements {
		if !st.Tally {
			continue
		}
		for _, d := range t.differences(st) {
			n[d.verdict]++
			total++
		}
	}
	subject, object := clean(t.suite.Subject), clean(t.suite.Object)
	switch total {
	case 0:
		return "no row of " + subject + " has a figure beside one of " + object + "."
	case n[tied]:
		return fmt.Sprintf("no difference was found between %s and %s in %s.", subject, object, count(total, "pair"))
	case n[tooFew]:
		return "too few rounds to say which of " + subject + " and " + object + " is the better."
	}
	ahead, behind := "is faster", "slower"
	better, worse := n[higher], n[lower]
	if t.wording.less {
		better, worse = worse, better
	}
	if t.wording.counted {
		ahead, behind = "takes fewer instructions", "more"
	}
	text := fmt.Sprintf("of %s, %s %s than %s in %s and %s in %s; no difference was found in %s",
		count(total, "pair"), subject, ahead, object, orNone(better), behind, orNone(worse), orNone(n[tied]))
	if n := n[unclear]; n > 0 {
		text += fmt.Sprintf(", and %d this run cannot tell", n)
	}
	if n := n[tooFew]; n > 0 {
		text += fmt.Sprintf(", and %d had too few rounds", n)
	}
	return text + "."
}

// orNone writes a number in a sentence.
func orNone(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}
