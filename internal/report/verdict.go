// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Bounds of verdicts.
const (
	// widestLevel is how far an interval may reach from 1 for a row to be level with the best one.
	widestLevel = 0.05
	// widestKnown is the bound from which on nothing is known.
	widestKnown = 0.5
	// mostNamed is the most rows that a verdict names.
	mostNamed = 6
	// mostPairs is the most pairs that a verdict lists one by one.
	mostPairs = 2
)

// contender is a row that may be the best one, with its ratio to the best one.
type contender struct {
	*entry
	difference
}

// contends reports whether a row may be the best. In a matrix this is the pod IP of a link, without kube-proxy's rules
// and without BIG TCP; in a grid a row of the decisive group. A suite that answers with a reference does not rank that.
func (t *workloadTable) contends(e *entry) bool {
	switch st := t.suite; {
	case !e.ok() || e.repeat:
		return false
	case !st.list():
		return e.Target == result.TargetPodIP && !e.Baseline && !e.BigTCP && (e.Proxy == "" || e.Proxy == result.ViaEBPFTC)
	case st.grid():
		return slices.Contains(t.decisive().Rows, e.ID)
	default:
		return e != t.reference || st.Answer[0] != result.AnswerReference
	}
}

// newContest finds the row that the contenders are compared with: in a matrix the one that the file's comparisons name,
// else the best. It returns the contenders in the order of their ratios to that row. The figure of a row of a matrix is
// that row's times the ratio, which is free of drift.
func (t *workloadTable) newContest() []contender {
	all := t.ranked(slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return !t.contends(e) }))
	if len(all) == 0 {
		return nil
	}
	best := all[0]
	for _, c := range t.comparisons {
		if e := t.byID[c.Denominator]; c.Asks == result.AsksRank && e != nil && t.contends(e) {
			best = e
			break
		}
	}
	t.rival = best
	out := []contender{{best, difference{verdict: tied, ratio: 1, ci: &[2]float64{1, 1}}}}
	for _, e := range all {
		if d := t.difference(e, best); e != best && d.ratio > 0 {
			if !t.suite.list() {
				e.figure = best.Median * d.ratio
			}
			out = append(out, contender{e, d})
		}
	}
	slices.SortStableFunc(out, func(a, b contender) int {
		if t.wording.less {
			return cmp.Compare(a.ratio, b.ratio)
		}
		return cmp.Compare(b.ratio, a.ratio)
	})
	return out
}

// verdict is the answer of a workload in a line.
func (t *workloadTable) verdict() string {
	if t.suite.answersPairs() {
		return keepTogether(t.pairLines())
	}
	if t.suite.grid() && len(t.contest) > 0 {
		return keepTogether(clean(t.decisive().Caption) + ": " + t.best())
	}
	return keepTogether(t.best())
}

// best names the best row with its figure, the rows that are level with it, and those that the run cannot tell from it.
func (t *workloadTable) best() string {
	if len(t.contest) == 0 {
		return t.figuresAlone()
	}
	top, within := t.contest[0], 0.0
	first := []string{top.named()}
	var open, few []string
	for _, c := range t.contest[1:] {
		reach := max(top.reach(), c.reach())
		switch {
		case c.verdict == tooFew:
			few = append(few, c.named())
		case t.meetsBest(c) && (reach > widestLevel || c.lossy()):
			open = append(open, c.named()+" ("+inside(reach)+")")
		case t.meetsBest(c):
			first, within = append(first, c.named()), max(within, reach)
		}
	}
	verb := t.wording.best
	switch {
	case len(t.contest) == 1:
		verb = "is the only one with a figure"
	case len(open)+len(few) > 0:
		verb = "has the " + t.wording.extreme + " figure"
	}
	level := ""
	if len(first) > 1 {
		verb = severally(verb)
		level = ", level " + inside(within)
	}
	out := fmt.Sprintf("%s %s for %s: %s%s.", inWords(atMost(first)), verb, t.plural(), t.figureOf(top.figure), level)
	if len(open) > 0 {
		out += " Not certain: " + strings.Join(atMost(open), ", ") + "."
	}
	if len(few) > 0 {
		out += " Too few rounds to compare: " + strings.Join(atMost(few), ", ") + "."
	}
	return out + t.bigTCP()
}

// severally is a verb of several rows.
func severally(verb string) string {
	return strings.NewReplacer("is ", "are ", "takes ", "take ", "has ", "have ").Replace(verb)
}

// meetsBest reports whether no difference to the best figure was found: where others were compared with another row,
// whether their intervals meet.
func (t *workloadTable) meetsBest(c contender) bool {
	top := t.contest[0]
	switch {
	case top.entry == t.rival || c.ci == nil || top.ci == nil:
		return c.verdict == tied
	case t.wording.less:
		return c.ci[0] <= top.ci[1]
	}
	return c.ci[1] >= top.ci[0]
}

// bigTCP tells what links reach with BIG TCP.
func (t *workloadTable) bigTCP() string {
	out := ""
	for _, c := range t.comparisons {
		plain := t.byID[c.Denominator]
		if c.Asks != result.AsksBigTCP || plain == nil || !t.contends(plain) || c.RoundsDone() == 0 {
			continue
		}
		d := judge(c)
		out += fmt.Sprintf(" With BIG TCP, %s carries %s, %s.", plain.name, t.figureOf(plain.figure*d.ratio), d.percent())
	}
	return out
}

// figuresAlone lists the figures of all rows, for runs without a contender.
func (t *workloadTable) figuresAlone() string {
	var parts []string
	for _, e := range t.ranked(t.measured()) {
		parts = append(parts, clean(e.ID)+" "+t.figureOf(e.figure))
	}
	if len(parts) == 0 {
		return "No row has a figure for " + t.plural() + "."
	}
	return upper(t.plural()) + ": " + strings.Join(atMost(parts), ", ") + "."
}

func (t *workloadTable) figureOf(v float64) string {
	unit := "\u00a0" + t.unit
	switch t.unit {
	case result.UnitTransactions:
		unit = "/s"
	case result.UnitPerPacket, result.UnitPerTransaction:
		unit = " each"
	}
	return short(v) + unit
}

// atMost lists names up to a number, and counts the others.
func atMost(names []string) []string {
	if len(names) <= mostNamed {
		return names
	}
	return append(slices.Clone(names[:mostNamed-1]), fmt.Sprintf("%d more", len(names)-mostNamed+1))
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// plural names what a workload has many of.
func (t *workloadTable) plural() string {
	words := t.names.Plural
	if words == "" {
		return LowerFirst(t.name)
	}
	if t.flows > 1 {
		words += fmt.Sprintf(" (%d at once)", t.flows)
	}
	if setup := t.setup.String(); setup != "" {
		words += " (" + setup + ")"
	}
	return words
}

// pair is the difference of a pair of rows that a suite states.
type pair struct {
	caption, label string
	row            *entry
	difference
}

// answersPairs reports whether the suite's answer is the ratios of pairs, and no row competes with all others.
func (st *suiteTables) answersPairs() bool { return len(st.answered()) > 0 }

// answered are the statements that the suite's answer consists of.
func (st *suiteTables) answered() []result.Statement {
	return slices.DeleteFunc(slices.Clone(st.Statements), func(s result.Statement) bool {
		return !(st.Answer[0] == result.AnswerTally && s.Tally || st.Answer[0] == result.AnswerStatements && s.Subject != "")
	})
}

// pairsOf compares the pairs of a statement that have figures.
func (t *workloadTable) pairsOf(s result.Statement) []pair {
	var out []pair
	for _, p := range s.Pairs {
		a, b := t.byID[p.Numerator], t.byID[p.Denominator]
		if a == nil || b == nil || !a.ok() || !b.ok() {
			continue
		}
		if d := t.difference(a, b); d.ratio > 0 {
			out = append(out, pair{clean(s.Caption), cmp.Or(spelt(clean(p.Label)), a.name), a, d})
		}
	}
	return out
}

// pairLines sums up the pairs of each statement of the answer; those that are tallied in one line.
func (t *workloadTable) pairLines() string {
	var out []string
	var all []pair
	for _, s := range t.suite.answered() {
		if s.Tally {
			all = append(all, t.pairsOf(s)...)
			continue
		}
		out = append(out, t.pairLine(clean(s.Caption), t.pairsOf(s)))
	}
	if len(all) > 0 {
		out = append(out, t.pairLine(clean(t.suite.Subject)+" against "+clean(t.suite.Object), all))
	}
	if text := strings.Join(slices.DeleteFunc(out, func(s string) bool { return s == "" }), " "); text != "" {
		return text
	}
	return t.name + ": no pair has figures."
}

// pairLine lists the ratios of a few pairs, or gives their range and counts what was found. It is empty without pairs.
func (t *workloadTable) pairLine(caption string, all []pair) string {
	if len(all) == 0 {
		return ""
	}
	var parts []string
	if len(all) <= mostPairs {
		for _, p := range all {
			parts = append(parts, p.label+" "+p.percent())
		}
		return fmt.Sprintf("%s, %s: %s.", t.name, caption, strings.Join(parts, "; "))
	}
	least, most, found := math.Inf(1), 0.0, map[string]int{}
	for _, p := range all {
		least, most = min(least, p.ratio), max(most, p.ratio)
		switch {
		case p.verdict == tooFew:
			found["too few rounds in"]++
		case p.verdict == tied:
			found["no difference found in"]++
		case (p.verdict == lower) == t.wording.less:
			found["better in"]++
		default:
			found["worse in"]++
		}
	}
	for _, words := range []string{"better in", "worse in", "no difference found in", "too few rounds in"} {
		if found[words] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", words, found[words]))
		}
	}
	return fmt.Sprintf("%s, %s: ratio %s in %d pairs; %s.", t.name, caption, shares(least, most), len(all),
		strings.Join(parts, ", "))
}

// certainty tells whether both ends shared a CPU, how well two measurements of one path agree, and which flag makes the
// run more certain.
func (st *suiteTables) certainty() string {
	var parts []string
	if st.run.SharedCPU() {
		parts = append(parts, "Both ends shared one CPU.")
	}
	short := func(c result.Comparison) bool { return c.CI95 == nil && c.RoundsDone() > 0 }
	if slices.ContainsFunc(st.workloads, func(t *workloadTable) bool {
		return slices.ContainsFunc(t.comparisons,
			short)
	}) {
		parts = append(parts, "The run was too short for 95\u00a0% intervals, so no difference is certain.")
	} else if unseen := st.unseen(); unseen != "" {
		parts = append(parts, unseen)
	}
	if more := st.run.Longer(); more != "" && st.run.Disturbances() == "" {
		parts = append(parts, "More certain: "+strings.ReplaceAll(more, " ", "\u00a0"))
	}
	return strings.Join(parts, " ")
}
