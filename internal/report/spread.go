// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strings"

	"mustang/internal/result"
)

// minRounds is the fewest samples that give a 95 % interval of a median: with
// five, even the smallest and the largest enclose it in only 94 % of cases.
const minRounds = 6

// verdict is what may be said of a ratio.
type verdict int

const (
	tooFew verdict = iota // under six rounds
	tied                  // no difference found
	lower                 // numerator is below denominator
	higher                // numerator is above denominator
)

// spread is how far apart the same thing lies when it is measured twice.
type spread struct {
	pairs  int     // A/A pairs in the file
	rounds int     // fewest rounds of any of them
	share  float64 // largest distance from 1 of their intervals; under six rounds, of any round's ratio
}

// newSpread takes the spread from the A/A pairs among the comparisons.
func newSpread(comparisons []result.Comparison) spread {
	var s spread
	for _, c := range comparisons {
		if !c.AA || len(c.Ratios) == 0 {
			continue
		}
		if s.pairs == 0 || len(c.Ratios) < s.rounds {
			s.rounds = len(c.Ratios)
		}
		s.pairs++
		reach := append([]float64{c.Ratio}, c.Ratios...)
		if c.CI95 != nil {
			reach = []float64{c.Ratio, c.CI95[0], c.CI95[1]}
		}
		for _, r := range reach {
			s.share = max(s.share, math.Abs(r-1))
		}
	}
	return s
}

// known says that the spread rests on enough rounds to judge by.
func (s spread) known() bool { return s.pairs > 0 && s.rounds >= minRounds }

// judge says what may be said of c in view of its interval and the spread.
func (s spread) judge(c result.Comparison) verdict {
	switch {
	case c.CI95 == nil:
		return tooFew
	case c.CI95[0] <= 1 && c.CI95[1] >= 1, s.known() && math.Abs(c.Ratio-1) <= s.share:
		return tied
	case c.Ratio < 1:
		return lower
	}
	return higher
}

// compare says how a stands to b: by the comparison within rounds if the file
// has one, else by whether their intervals overlap.
func (s *set) compare(a, b *entry) verdict {
	if c := s.comparison(a.ID, b.ID); c != nil {
		return s.spread.judge(*c)
	}
	if c := s.comparison(b.ID, a.ID); c != nil {
		return [...]verdict{tooFew: tooFew, tied: tied, lower: higher, higher: lower}[s.spread.judge(*c)]
	}
	if a.CI95 == nil || b.CI95 == nil {
		return tooFew
	}
	if a.CI95[0] <= b.CI95[1] && b.CI95[0] <= a.CI95[1] {
		return tied
	}
	if s.spread.known() && math.Abs(a.Median/b.Median-1) <= s.spread.share {
		return tied
	}
	if a.Median < b.Median {
		return lower
	}
	return higher
}

// sign marks a ratio in a table; one character wide, so that ratios align.
func (v verdict) sign() string {
	switch v {
	case tied:
		return "~"
	case tooFew:
		return "?"
	case lower, higher:
	}
	return " "
}

// spreadSentence says what the spread means for the reader.
func (s *set) spreadSentence() string {
	switch {
	case s.spread.pairs == 0:
		return s.name + ": nothing was measured twice in this run, so the machine's own spread (A/A) is not known."
	case !s.spread.known():
		return fmt.Sprintf("%s: too few rounds (%d, it takes %d) to say which differences can be told; the same thing measured twice differed by up to %s in a round.",
			s.name, s.spread.rounds, minRounds, percent(s.spread.share))
	}
	return fmt.Sprintf("%s: no difference smaller than %s can be told on this machine in this run (A/A: the same thing measured twice).",
		s.name, percent(s.spread.share))
}

// spreadSentence says the same of all sets of a suite, in brief.
func (su *suite) spreadSentence() string {
	var known, unknown []string
	for _, s := range su.sets {
		name := lowerFirst(s.name)
		if s.spread.known() {
			known = append(known, percent(s.spread.share)+" ("+name+")")
		} else {
			unknown = append(unknown, name)
		}
	}
	var parts []string
	if len(known) > 0 {
		parts = append(parts, "No difference smaller than "+strings.Join(known, ", ")+" can be told (A/A: the same thing measured twice).")
	}
	if len(unknown) > 0 {
		parts = append(parts, "The machine's own spread (A/A) is not known, or of too few rounds: "+strings.Join(unknown, "; ")+".")
	}
	return strings.Join(parts, " ")
}
