// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	"mustang/internal/result"
)

// ordered returns the comparisons in the file's order, A/A last.
func (s *set) ordered() []result.Comparison {
	var out, same []result.Comparison
	for _, c := range s.comparisons {
		switch {
		case len(c.Ratios) == 0:
		case c.AA:
			same = append(same, c)
		default:
			out = append(out, c)
		}
	}
	return append(out, same...)
}

// comparisonName names a comparison by its rows, which the name in the file may
// not.
func comparisonName(c result.Comparison) string {
	name := clean(c.Numerator) + " over " + clean(c.Denominator)
	above, rest, cut := strings.Cut(clean(c.Numerator), "/")
	if below, target, _ := strings.Cut(clean(c.Denominator), "/"); cut && above == below && rest != "" && target != "" {
		name = above + ": " + rest + " over " + target
	}
	if c.AA {
		name = "A/A: " + name
	}
	return name
}

// ratioInterval prints the interval of a ratio.
func ratioInterval(ci *[2]float64) string {
	if ci == nil {
		return "too few rounds"
	}
	return ratio(ci[0]) + " to " + ratio(ci[1])
}

// finding says what may be said of a comparison. Of the same thing measured
// twice any difference is the machine's.
func (s *set) finding(c result.Comparison) string {
	if c.AA {
		return "the machine's own spread"
	}
	return s.reading.words(s.spread.judge(c), c)
}

// sign marks the ratio of a comparison; those of A/A bear none.
func (s *set) sign(c result.Comparison) string {
	if c.AA {
		return " "
	}
	return s.spread.judge(c).sign()
}

// lowerFirst is a heading in the middle of a sentence, but for names such as UDP.
func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:min(1, len(s))]) + s[min(1, len(s)):]
}
