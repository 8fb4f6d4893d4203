// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/facts"
	"mustang/internal/report/format"
	"mustang/internal/result"
)

// spread is the distance between repeated measurements of one row (A/A).
type spread struct {
	pairs  int     // A/A pairs in the file
	rounds int     // fewest rounds of any of them
	share  float64 // largest distance from 1 of their intervals; under six rounds, of any round's ratio
	factor float64 // the same as a factor, at least 1
}

// newSpread takes the spread from the A/A pairs among the comparisons.
func newSpread(comparisons []result.Comparison) spread {
	s := spread{factor: 1}
	for _, c := range comparisons {
		if !c.AA || c.RoundsDone() == 0 {
			continue
		}
		if s.pairs == 0 || c.RoundsDone() < s.rounds {
			s.rounds = c.RoundsDone()
		}
		s.pairs++
		reach := append([]float64{c.Ratio}, c.Ratios...)
		if c.CI95 != nil {
			reach = []float64{c.Ratio, c.CI95[0], c.CI95[1]}
		}
		for _, r := range reach {
			s.share, s.factor = max(s.share, math.Abs(r-1)), max(s.factor, r, 1/max(r, 1e-3))
		}
	}
	return s
}

// tooWide is the spread from which it says nothing of differences.
const tooWide = 0.5

// known reports whether the spread rests on enough rounds to judge by.
func (s spread) known() bool { return s.pairs > 0 && s.rounds >= facts.MinRounds }

// newSpreads takes the spread of each class from the comparisons.
func newSpreads(comparisons []result.Comparison) map[string]spread {
	byClass := map[string][]result.Comparison{}
	for _, c := range comparisons {
		byClass[c.Class] = append(byClass[c.Class], c)
	}
	out := map[string]spread{}
	for class, of := range byClass {
		if s := newSpread(of); s.pairs > 0 {
			out[class] = s
		}
	}
	return out
}

// classes returns the classes with repeated rows, the quietest first; at least one.
func (t *workloadTable) classes() []string {
	var out []string
	for _, class := range result.Classes() {
		if _, ok := t.spreads[class]; ok {
			out = append(out, class)
		}
	}
	if len(out) == 0 {
		return []string{""}
	}
	return out
}

// quietest returns the spread of the quietest class, which charts show.
func (t *workloadTable) quietest() spread { return t.spreads[t.classes()[0]] }

// class returns an entry's class: the quietest of its comparisons, each of which has that of the
// noisier row.
func (t *workloadTable) class(e *entry) string {
	order := result.Classes()
	least := len(order)
	for _, c := range t.comparisons {
		if at := slices.Index(order, c.Class); at >= 0 && (c.Numerator == e.ID || c.Denominator == e.ID) {
			least = min(least, at)
		}
	}
	if least == len(order) {
		return t.classes()[0]
	}
	return order[least]
}

// among names the paths of a class, empty for all.
func among(class string) string {
	switch class {
	case result.ClassKernel:
		return " in the kernel"
	case result.ClassUserSpace:
		return " through user space"
	case result.ClassTwoCPUs:
		return " on two CPUs"
	case result.ClassGuests:
		return " between virtual machines"
	}
	return ""
}

// spreadSentence tells which differences the run can tell under the workload.
func (t *workloadTable) spreadSentence() string {
	classes := t.classes()
	if len(classes) == 1 {
		return t.name + ": " + t.quietest().sentence() + "."
	}
	var parts []string
	for _, class := range classes {
		parts = append(parts, strings.TrimSpace(among(class))+" "+t.spreads[class].sentence())
	}
	return t.name + ": " + strings.Join(parts, "; ") + "."
}

// sentence tells which differences can be told.
func (s spread) sentence() string {
	switch {
	case s.pairs == 0:
		return "nothing was measured twice in this run, so the machine's own spread (A/A) is not known"
	case s.share >= tooWide:
		return "too noisy to tell differences: the same thing measured twice (A/A) is not known to be alike within " + format.Percent(tooWide)
	case !s.known():
		return fmt.Sprintf("too few rounds (%d, it takes %d) to say which differences can be told; the same thing measured twice differed by up to %s in a round",
			s.rounds, facts.MinRounds, format.Percent(s.share))
	}
	return fmt.Sprintf("no difference smaller than %s can be told on this machine in this run (A/A: the same thing measured twice)", format.Percent(s.share))
}

// spread says the same of all workloads in brief.
func (st *suiteTables) spread() string {
	var known, unknown, noisy []string
	for _, t := range st.workloads {
		classes := t.classes()
		for _, class := range classes {
			name, s := format.LowerFirst(t.name), t.spreads[class]
			if len(classes) > 1 {
				name += among(class)
			}
			switch {
			case s.share >= tooWide:
				noisy = append(noisy, name)
			case s.known():
				known = append(known, format.Percent(s.share)+" ("+name+")")
			default:
				unknown = append(unknown, name)
			}
		}
	}
	var parts []string
	if len(known) > 0 {
		parts = append(parts, "No difference smaller than "+strings.Join(known, ", ")+" can be told (A/A: the same thing measured twice).")
	}
	if len(noisy) > 0 {
		parts = append(parts, "Too noisy to tell differences: "+strings.Join(noisy, "; ")+".")
	}
	if len(unknown) > 0 {
		parts = append(parts, "The machine's own spread (A/A) is not known, or of too few rounds: "+strings.Join(unknown, "; ")+".")
	}
	return strings.Join(parts, " ")
}
