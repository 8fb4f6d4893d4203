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

// Bounds of the sentences on links.
const (
	// widestLevel is how far an interval may reach from 1 for a link to be level with the best one.
	widestLevel = 0.05
	// widestKnown is the bound from which on nothing is known.
	widestKnown = 0.5
	// mostNamed is the most links that a sentence names one by one.
	mostNamed = 6
)

// contender is a link that may be the best one, with its ratio to the best one.
type contender struct {
	*entry
	difference
}

// contends reports whether a row of a matrix may be the best: the pod IP of a link without the rules of a
// service proxy of the kernel and without BIG TCP.
func (e *entry) contends() bool {
	return e.ok() && e.Target == result.TargetPodIP && !e.Baseline && !e.repeat && !e.BigTCP &&
		(e.Proxy == "" || e.Proxy == result.ViaEBPFTC)
}

// newContest returns the contenders of a matrix: the best, which the file's comparisons name, and the others in the
// order of their ratios to it.
func (t *workloadTable) newContest() []contender {
	all := t.ranked(slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return !e.contends() }))
	if len(all) == 0 {
		return nil
	}
	best := all[0] // without a comparison that names it
	for _, c := range t.comparisons {
		if e := t.byID[c.Denominator]; c.Asks == result.AsksRank && e != nil && e.contends() {
			best = e
			break
		}
	}
	out := []contender{{best, difference{ratio: 1}}}
	for _, e := range all {
		if d := t.difference(e, best); e != best && d.ratio > 0 {
			out = append(out, contender{e, d})
		}
	}
	slices.SortStableFunc(out[1:], func(a, b contender) int {
		if t.wording.less {
			return cmp.Compare(a.ratio, b.ratio)
		}
		return cmp.Compare(b.ratio, a.ratio)
	})
	return out
}

// figureBy prints a figure: the best link's, times a ratio.
func (t *workloadTable) figureBy(best *entry, ratio float64) string {
	return format.Short(best.Median*ratio) + t.short()
}

// short is the unit behind a figure in a sentence.
func (t *workloadTable) short() string {
	switch t.unit {
	case result.UnitTransactions:
		return "/s"
	case result.UnitPerPacket, result.UnitPerTransaction:
		return " each"
	}
	return "\u00a0" + t.unit
}

// rank names the fastest links of a workload with their figure, and what the others reach less.
func (t *workloadTable) rank() string {
	all := t.contest
	if len(all) == 0 {
		return t.figuresAlone()
	}
	best, rest := all[0], all[1:]
	var level, open, behind []contender
	within := 0.0
	for _, c := range rest {
		switch {
		case c.verdict != tied || c.ci == nil:
			behind = append(behind, c)
		case c.reach() > widestLevel, c.lossy():
			open = append(open, c)
		default:
			level, within = append(level, c), max(within, c.reach())
		}
	}
	first := []string{best.entry.named()}
	for _, c := range level {
		first = append(first, c.entry.named())
	}
	mentioned := slices.Clone(first)
	verb := t.wording.best
	compared := slices.ContainsFunc(rest, func(c contender) bool { return c.verdict != tooFew })
	switch {
	case len(rest) == 0:
		verb = "is the only link with a figure"
	case len(open) > 0, !compared:
		verb = "has the " + t.wording.extreme + " figure"
	}
	if len(level) > 0 {
		verb = strings.NewReplacer("is ", "are ", "takes ", "take ", "has ", "have ").Replace(verb)
	}
	out := fmt.Sprintf("%s %s for %s: %s", format.List(atMost(first)), verb, t.plural(), t.figureBy(best.entry, 1))
	if len(rest) > 0 && !compared {
		return out + "; too few networks to compare."
	}
	if len(level) > 0 {
		out += ", level " + inside(within)
	}
	var unsure []string
	for _, c := range open {
		far := "up to " + t.far(c.difference)
		if c.apart() {
			far = c.span() + more(c.ratio)
		}
		unsure = append(unsure, fmt.Sprintf("%s (%s)", t.named(c, mentioned), far))
	}
	if len(unsure) > 0 {
		out += ". Not certain: " + strings.Join(atMost(unsure), ", ")
	}
	out += t.others(behind, &mentioned)
	for _, c := range t.comparisons {
		if plain := t.byID[c.Denominator]; c.Asks == result.AsksBigTCP && plain != nil && c.RoundsDone() > 0 {
			out += t.bigTCP(plain, judge(c), all)
		}
	}
	return out
}

// figuresAlone lists the figures of all rows, for runs without a contender.
func (t *workloadTable) figuresAlone() string {
	var parts []string
	for _, e := range t.ranked(t.measured()) {
		if !e.repeat {
			parts = append(parts, format.Clean(e.ID)+" "+format.Short(e.Median)+t.short())
		}
	}
	if len(parts) == 0 {
		return "No link has a figure for " + t.plural() + "."
	}
	return format.UpperFirst(t.plural()) + ": " + strings.Join(atMost(parts), ", ") + "."
}

// others lists links that are behind the best one: those in the kernel, a number of them by name, and the range of
// those through user space.
func (t *workloadTable) others(behind []contender, mentioned *[]string) string {
	var parts []string
	var user, more []contender
	for _, c := range behind {
		switch {
		case c.class == result.ClassUserSpace:
			user = append(user, c)
		case len(parts) == mostNamed:
			more = append(more, c)
		default:
			parts = append(parts, t.named(c, *mentioned)+" "+t.amount(c.difference))
			*mentioned = append(*mentioned, c.name)
		}
	}
	for _, group := range []struct {
		of   []contender
		what string
	}{{more, " others"}, {user, " through user space"}} {
		switch n := len(group.of); n {
		case 0:
		case 1:
			parts = append(parts, group.of[0].name+" "+t.amount(group.of[0].difference))
		default:
			least, most := group.of[0], group.of[n-1]
			parts = append(parts, fmt.Sprintf("%d%s %s to %s", n, group.what, share(least.ratio), t.amount(most.difference)))
		}
	}
	if len(parts) == 0 {
		return "."
	}
	return ". " + strings.Join(parts, ", ") + "."
}

// bigTCP tells what a link reaches with BIG TCP.
func (t *workloadTable) bigTCP(plain *entry, d difference, all []contender) string {
	for _, c := range all {
		if c.entry != plain {
			continue
		}
		found := t.amount(d)
		if d.verdict == tied {
			found = "no difference found (" + inside(d.reach()) + ")"
		}
		return fmt.Sprintf(" With BIG TCP, %s carries %s, %s.", plain.name, t.figureBy(all[0].entry, c.ratio*d.ratio), found)
	}
	return ""
}

// named is a contender's name: "plain" goes before it where the sentence has named the same link with eBPF.
func (t *workloadTable) named(c contender, mentioned []string) string {
	if c.Datapath != result.DatapathEBPF && slices.Contains(mentioned, c.name+"+eBPF") {
		return "plain " + c.entry.named()
	}
	return c.entry.named()
}

// atMost lists names up to a number, and counts the others.
func atMost(names []string) []string {
	if len(names) <= mostNamed {
		return names
	}
	return append(slices.Clone(names[:mostNamed-1]), fmt.Sprintf("%d more", len(names)-mostNamed+1))
}

// amount prints a difference: "14 % less", with half of its interval where that is wide for it: "2.0 % ±1.5 less".
func (t *workloadTable) amount(d difference) string {
	if d.ratio >= 2 {
		return format.Factor(d.ratio) + " as many"
	}
	return shareWithHalf(d) + more(d.ratio)
}

// shareWithHalf prints how far a ratio lies from 1, with half of its interval where that is wide for it.
func shareWithHalf(d difference) string {
	text := share(d.ratio)
	if d.ci != nil && d.half() > math.Abs(d.ratio-1)/3 {
		text += "\u00a0±" + number(d.half())
	}
	return text
}

// more is the direction of a ratio.
func more(ratio float64) string {
	if ratio < 1 {
		return " less"
	}
	return " more"
}

// far prints the far end of an interval: "12 % less".
func (t *workloadTable) far(d difference) string {
	if t.wording.less {
		return atWorst(d, true) + " more"
	}
	return atWorst(d, false) + " less"
}

// atWorst prints the end of an interval at which the numerator is the worse, where less is better or more.
func atWorst(d difference, less bool) string {
	if less {
		return percentUp(d.ci[1] - 1)
	}
	return percentUp(1 - d.ci[0])
}

// share prints how far a ratio lies from 1 in per cent, with a decimal under three.
func share(ratio float64) string {
	if ratio >= 2 {
		return format.Factor(ratio)
	}
	by := 100 * math.Abs(ratio-1)
	if by < 2.95 {
		return format.Number(by, 1) + "\u00a0%"
	}
	if by > 99 && ratio < 1 {
		return "over 99\u00a0%"
	}
	return format.Number(by, 0) + "\u00a0%"
}

// number prints a share in per cent, rounded up: nothing is known exactly.
func number(v float64) string {
	if v = 100 * v; v < 2.95 {
		return format.Number(max(math.Ceil(10*v-1e-6), 1)/10, 1)
	}
	return format.Number(math.Ceil(v-1e-6), 0)
}

// percentUp is number with its sign.
func percentUp(v float64) string { return number(v) + "\u00a0%" }

// inside prints a bound on a difference that was not found.
func inside(reach float64) string {
	if reach > widestKnown {
		return "not bounded"
	}
	return "within " + percentUp(reach)
}

// plural names what a workload has many of.
func (t *workloadTable) plural() string {
	words, known := map[string]string{
		result.WorkloadTCPStream: "streams", result.WorkloadUDPStream: "UDP streams",
		result.WorkloadTCPRR: "requests", result.WorkloadTCPCRR: "connections", result.WorkloadUDPRR: "UDP requests",
	}[t.workload]
	if t.workload == result.WorkloadUDPStream && t.wording.counted {
		words = "UDP packets"
	}
	if !known {
		words = format.LowerFirst(t.name)
	}
	if t.flows > 1 {
		words += fmt.Sprintf(" (%d at once)", t.flows)
	}
	if setup := t.setup.String(); setup != "" {
		words += " (" + setup + ")"
	}
	return words
}

// linkAnswer puts the answer of a matrix in sentences with figures.
func (st *suiteTables) linkAnswer() []string {
	var out []string
	for _, t := range st.workloads {
		if st.statesPairs() {
			out = append(out, t.stated()...)
		} else {
			out = append(out, t.rank())
		}
	}
	out = append(out, st.costSentences()...)
	out = append(out, st.certainty())
	for i := range out {
		out[i] = format.KeepTogether(out[i])
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// certainty tells whether both ends shared a CPU, how well two measurements of one path agree, and which flag makes
// the run more certain.
func (st *suiteTables) certainty() string {
	var parts []string
	if st.run.SharedCPU() {
		parts = append(parts, "Both ends shared one CPU.")
	}
	short := func(c result.Comparison) bool { return c.CI95 == nil && c.RoundsDone() > 0 }
	if slices.ContainsFunc(st.workloads, func(t *workloadTable) bool { return slices.ContainsFunc(t.comparisons, short) }) {
		parts = append(parts, "The run was too short for 95\u00a0% intervals, so no difference is certain.")
	} else if unseen := st.unseen(); unseen != "" {
		parts = append(parts, unseen)
	}
	if more := st.run.Longer(); more != "" && st.run.Disturbances() == "" {
		parts = append(parts, "More certain: "+strings.ReplaceAll(more, " ", "\u00a0"))
	}
	return strings.Join(parts, " ")
}
