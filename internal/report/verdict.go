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

const (
	mostNamed = 6
	mostPairs = 2
	muchLost  = 0.05 // a row that lost a larger share of its datagrams is lossy
)

// contender is a row that may be the best one, with its ratio to the best one.
type contender struct {
	*entry
	difference
}

func (e *entry) lossy() bool { return e.ok() && e.LostShare > muchLost }

func (e *entry) named() string {
	if !e.lossy() {
		return e.name
	}
	return e.name + " (" + percentOf(e.LostShare) + " lost)"
}

// contends reports whether a row may be the best. In a matrix this is the pod IP of a link, without kube-proxy's rules
// and without BIG TCP; in a grid a row of the decisive group. A suite that answers with a reference does not rank that.
func (t *workload) contends(e *entry) bool {
	switch st := t.suite; {
	case !e.ok() || e.repeat || e.Median <= 0:
		return false
	case !st.list():
		return e.Target == result.TargetPodIP && !e.Baseline && !e.BigTCP && (e.Proxy == "" || e.Proxy == result.ViaEBPFTC)
	case st.grid():
		return slices.Contains(t.decisive().Rows, e.ID)
	default:
		return e != t.reference || st.Answer[0] != result.AnswerReference
	}
}

// newContest returns the contenders in the order of their ratios to the row that the comparisons name, else to the
// best. Their figures are that row's figure times the ratio, which is free of drift.
func (t *workload) newContest() []contender {
	all := t.ranked(filter(t.entries, t.contends))
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
	if ref := t.paired(best, t.reference); ref.ratio > 0 && t.reference.ok() {
		best.figure = t.reference.Median * ref.ratio
	}
	t.rival = best
	out := []contender{{best, difference{verdict: tied, ratio: 1, ci: &[2]float64{1, 1}}}}
	for _, e := range all {
		if d := t.difference(e, best); e != best && d.ratio > 0 {
			if !t.suite.list() || !t.suite.answersPairs() {
				e.figure = best.figure * d.ratio
			}
			out = append(out, contender{e, d})
		}
	}
	slices.SortStableFunc(out, func(a, b contender) int { return t.compareFigures(a.ratio, b.ratio) })
	return out
}

func (t *workload) verdict() string {
	text := ""
	switch {
	case t.suite.answersPairs():
		text = t.pairLines()
	case len(t.contest) == 0:
		text = t.figuresAlone()
	case t.suite.grid():
		text = t.decisive().Caption + ": " + t.best()
	default:
		text = t.best()
	}
	return strings.NewReplacer("95 % interval", "95\u00a0%\u00a0interval", " Gbit/s", "\u00a0Gbit/s", " ms", "\u00a0ms",
		" instructions/", "\u00a0instructions/").Replace(text)
}

func (t *workload) best() string {
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
	verb, level := t.better.best, ""
	if len(t.contest) == 1 {
		verb = "is the only one with a figure"
	} else if len(open)+len(few) > 0 || t.suite.run.disturbances() != "" {
		verb = "has the " + t.better.extreme + " figure"
	}
	if len(first) > 1 {
		verb = strings.NewReplacer("is ", "are ", "takes ", "take ", "has ", "have ").Replace(verb)
		level = ", level " + inside(within)
	}
	out := fmt.Sprintf("%s %s for %s: %s%s.", inWords(atMost(first)), verb, t.plural(), t.figureOf(top.figure), level)
	for i, names := range [][]string{open, few} {
		if len(names) > 0 {
			out += []string{" Not certain: ", " Too few rounds to compare: "}[i] + strings.Join(atMost(names), ", ") + "."
		}
	}
	for _, c := range t.comparisons {
		plain := t.byID[c.Denominator]
		if c.Asks != result.AsksBigTCP || plain == nil || !t.contends(plain) || c.RoundsDone() == 0 {
			continue
		}
		if d := judge(c); d.verdict != tied {
			faster := d.verdict == higher && plain.figure*d.ci[0] > top.figure && t.suite.run.disturbances() == ""
			is := map[bool]string{true: "is faster:", false: "has"}[faster]
			out += fmt.Sprintf(" With BIG TCP, %s %s %s (%s by BIG TCP).", plain.name, is, t.figureOf(plain.figure*d.ratio),
				d.percent())
		}
	}
	return out
}

// meetsBest reports whether no difference to the best was found, or their intervals meet if it is not the rival.
func (t *workload) meetsBest(c contender) bool {
	top := t.contest[0]
	switch {
	case top.entry == t.rival || c.ci == nil || top.ci == nil:
		return c.verdict == tied
	case t.better.less:
		return c.ci[0] <= top.ci[1]
	}
	return c.ci[1] >= top.ci[0]
}

func (t *workload) figuresAlone() string {
	parts := convert(t.ranked(t.measured()), func(e *entry) string { return e.ID + " " + t.figureOf(e.figure) })
	if len(parts) == 0 {
		return "No row has a figure for " + t.plural() + "."
	}
	return upper(t.plural()) + ": " + strings.Join(atMost(parts), ", ") + "."
}

func (t *workload) figureOf(v float64) string {
	switch t.unit {
	case result.UnitTransactions:
		return short(v) + "/s"
	case result.UnitPerPacket, result.UnitPerTransaction:
		return short(v) + " each"
	}
	return short(v) + "\u00a0" + t.unit
}

func atMost(names []string) []string {
	if len(names) <= mostNamed {
		return names
	}
	return append(slices.Clone(names[:mostNamed-1]), fmt.Sprintf("%d more", len(names)-mostNamed+1))
}

func (t *workload) plural() string {
	words := cmp.Or(t.names.Plural, LowerFirst(t.name))
	if t.names.Plural != "" && t.Flows > 1 {
		words += fmt.Sprintf(" (%d at once)", t.Flows)
	}
	if setup := t.Setup.String(); t.names.Plural != "" && setup != "" {
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
func (st *suite) answersPairs() bool { return len(st.answered()) > 0 }

func (st *suite) answered() []result.Statement {
	return filter(st.Statements, func(s result.Statement) bool {
		return st.Answer[0] == result.AnswerTally && s.Tally || st.Answer[0] == result.AnswerStatements && s.Subject != ""
	})
}

func (t *workload) pairsOf(s result.Statement) (out []pair) {
	for _, p := range s.Pairs {
		a, b := t.byID[p.Numerator], t.byID[p.Denominator]
		if a == nil || b == nil || !a.ok() || !b.ok() {
			continue
		}
		if d := t.difference(a, b); d.ratio > 0 {
			out = append(out, pair{s.Caption, cmp.Or(spelt(p.Label), a.name), a, d})
		}
	}
	return out
}

// pairLines sums up the pairs of each statement of the answer. Statements with a tally share one line.
func (t *workload) pairLines() string {
	var by byReason[pair]
	for _, s := range t.suite.answered() {
		caption := s.Caption
		if s.Tally {
			caption = t.suite.Subject + " against " + t.suite.Object
		}
		for _, p := range t.pairsOf(s) {
			by.add(caption, p)
		}
	}
	if len(by.reasons) == 0 {
		return t.name + ": no pair has figures."
	}
	return strings.Join(by.texts(t.pairLine), " ")
}

// pairLine lists the ratios of a few pairs, or gives their range and counts what was found.
func (t *workload) pairLine(caption string, all []pair) string {
	if len(all) <= mostPairs {
		parts := convert(all, func(p pair) string { return p.label + " " + p.percent() })
		return fmt.Sprintf("%s, %s: %s.", t.name, caption, strings.Join(parts, "; "))
	}
	least, most, found := math.Inf(1), 0.0, map[verdict]int{}
	for _, p := range all {
		least, most = min(least, p.ratio), max(most, p.ratio)
		found[p.verdict]++
	}
	order := []verdict{higher, lower, tied, tooFew}
	if t.better.less {
		order[0], order[1] = lower, higher
	}
	var parts []string
	for i, v := range order {
		if n := found[v]; n > 0 {
			words := []string{"better", "worse", "no difference found", "too few rounds"}[i]
			parts = append(parts, fmt.Sprintf("%s in %d", words, n))
		}
	}
	return fmt.Sprintf("%s, %s: ratio %s in %d pairs; %s.", t.name, caption, shares(least, most), len(all),
		strings.Join(parts, ", "))
}
