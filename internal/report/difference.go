// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"
	"strings"
)

// difference is how one entry stands to another.
type difference struct {
	verdict verdict
	ratio   float64     // 0 when it is not known
	ci      *[2]float64 // nil where there was no comparison within rounds
}

// difference says how a stands to b, both of which have a figure: by the
// comparison within rounds if the file has one, else by their medians.
func (s *set) difference(a, b *entry) difference {
	d := difference{verdict: s.compare(a, b)}
	if c := s.comparison(a.ID, b.ID); c != nil {
		d.ratio, d.ci = c.Ratio, c.CI95
	} else if c := s.comparison(b.ID, a.ID); c != nil {
		d.ratio, d.ci = c.Ratio, c.CI95
		d = d.turned()
		d.verdict = s.compare(a, b)
	} else if b.Median != 0 {
		d.ratio = a.Median / b.Median
	}
	return d
}

// turned is the difference seen from the other side, as time is from rates.
func (d difference) turned() difference {
	out := difference{verdict: [...]verdict{tooFew: tooFew, tied: tied, lower: higher, higher: lower}[d.verdict]}
	if d.ratio != 0 {
		out.ratio = 1 / d.ratio
	}
	if d.ci != nil && d.ci[0] > 0 && d.ci[1] > 0 {
		out.ci = &[2]float64{1 / d.ci[1], 1 / d.ci[0]}
	}
	return out
}

// size is the difference in per cent, with its interval if it has one.
func (d difference) size(words string) string {
	text := percent(math.Abs(d.ratio-1)) + words
	if d.ci == nil {
		return "about " + text + " by the medians"
	}
	ends := []float64{math.Abs(d.ci[0]-1) * 100, math.Abs(d.ci[1]-1) * 100}
	slices.Sort(ends)
	places := 1
	if ends[1] < 0.095 {
		places = 2
	}
	return text + " (" + number(ends[0], places) + "\u00a0to\u00a0" + number(ends[1], places) + ")"
}

// says puts a difference of figures in words.
func (s *set) says(d difference) string {
	switch d.verdict {
	case tied:
		return "no difference found"
	case lower:
		return d.size(" " + s.reading.lower)
	case higher:
		return d.size(" " + s.reading.higher)
	}
	return "too few rounds to tell"
}

// standing is how the measured ways stand to the reference: names with their
// differences.
type standing struct{ worse, same, better, few []string }

// standing sorts the measured ways, putting a difference in words.
func (s *set) standing(words func(difference) string) standing {
	var out standing
	for _, e := range s.measured() {
		if e == s.reference {
			continue
		}
		d := s.difference(e, s.reference)
		switch {
		case d.verdict == tooFew:
			out.few = append(out.few, e.connection)
		case d.verdict == tied:
			out.same = append(out.same, e.connection)
		case s.reading.worse(d.verdict):
			out.worse = append(out.worse, e.connection+" "+words(d))
		default:
			out.better = append(out.better, e.connection+" "+words(d))
		}
	}
	return out
}

// against says how all measured ways stand to the reference, a line for each group
// that there is: what is worse first, then what can't be told from it, then what is
// better.
func (st standing) against(worse, better, reference string) []string {
	var out []string
	for _, group := range []struct {
		words string
		ways  []string
		join  func([]string) string
	}{
		{worse + " than " + reference + ": ", st.worse, commas},
		{"no difference to " + reference + " found: ", st.same, list},
		{better + " than " + reference + ": ", st.better, commas},
		{"too few rounds to tell from " + reference + ": ", st.few, list},
	} {
		if len(group.ways) > 0 {
			out = append(out, group.words+group.join(group.ways)+".")
		}
	}
	return out
}

// commas joins names that have figures.
func commas(parts []string) string { return strings.Join(parts, ", ") }

// missing says how many ways have no figure; nothing if all have one.
func (s *set) missing() string {
	n := 0
	for _, e := range s.entries {
		if !e.ok() && !e.repeat {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return " " + wasWere(n, "way") + " skipped or failed."
}

// figure is an entry's median with its unit.
func (s *set) figure(e *entry) string {
	return number(e.Median, decimals(e.Median)) + " " + s.unit
}
