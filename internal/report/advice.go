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

// advice says what to do, from verdicts alone. Quick and noisy runs give none.
func (st *suiteTables) advice() string {
	one, _, short := st.workloads[0].nouns()
	unsure := st.quick || st.noise() != ""
	none, why := "This run names no best "+one, "."
	switch {
	case st.noise() != "":
		why = ": it is too noisy."
	case st.quick:
		why = ": it was a quick one."
	}
	none += why
	switch {
	case st.statesPairs():
		return ""
	case st.Answer[0] == result.AnswerTally && unsure:
		return st.undecided()
	case st.Answer[0] == result.AnswerTally:
		return st.tallyAdvice()
	case unsure:
		return none
	}
	var common, each []string
	for _, t := range st.workloads {
		contenders := t.contenders(true)
		s := t.standing(contenders)
		best := s.best
		if !t.decided(s) || len(best) > 1 && 2*len(best) >= len(contenders)-len(s.few) {
			continue
		}
		if here := names(best); len(each) == 0 {
			common = here
		} else {
			common = slices.DeleteFunc(common, func(name string) bool { return !slices.Contains(here, name) })
		}
		each = append(each, format.Choice(names(best), manyNames)+" for "+format.LowerFirst(t.name))
	}
	on := "On this machine choose "
	if st.counted {
		on = "By instructions choose "
	}
	switch {
	case len(each) == 0:
		return none + st.proxyAdvice()
	case len(common) == 0:
		return on + strings.Join(each, ", ") + "." + st.proxyAdvice()
	case len(each) < len(st.workloads):
		return on + strings.Join(each, ", ") + "; the other workloads name no best " + short + "." + st.proxyAdvice()
	case len(common) > 1:
		return on + format.Choice(common, manyNames) + ": no difference was found between them." + st.proxyAdvice()
	}
	return on + common[0] + "." + st.proxyAdvice()
}

// proxyAdvice compares kube-proxy's two modes where every verdict on them points the same way;
// else it is empty.
func (st *suiteTables) proxyAdvice() string {
	leader, figures := "", ""
	for _, t := range st.workloads {
		for _, pod := range t.contenders(false) {
			iptables, nftables := t.costly(pod, result.ViaIPTables), t.costly(pod, result.ViaNFTables)
			if iptables == nil || nftables == nil {
				continue
			}
			d := t.difference(nftables, iptables)
			if d.verdict != lower && d.verdict != higher {
				continue
			}
			less, more, ahead := nftables, iptables, "nftables costs less than iptables"
			if t.wording.worse(d.verdict) {
				less, more, ahead = iptables, nftables, "iptables costs less than nftables"
			}
			if leader != "" && leader != ahead {
				return ""
			}
			leader = ahead
			if a, b := t.cost(less), t.cost(more); figures == "" && a != "" && b != "" {
				figures = fmt.Sprintf(": %s against %s (%s, %s)", a, b, pod.name, format.LowerFirst(t.name))
			}
		}
	}
	if leader == "" {
		return ""
	}
	return " If kube-proxy must stay, " + leader + figures + "."
}

// costly returns the cluster IP of a pod's connection that has a cost; nil if there is none.
func (t *workloadTable) costly(pod *entry, via string) *entry {
	for _, e := range t.entries {
		if e.name == pod.name && e.Via == via && e.cost != nil && !e.repeat {
			return e
		}
	}
	return nil
}

// cost prints a cost in per cent, with a decimal if that is known; empty if no cost was found, or
// its interval is wider.
func (t *workloadTable) cost(e *entry) string {
	d := t.of(*e.cost)
	if !t.wording.worse(d.verdict) || d.rough() {
		return ""
	}
	if d.ratio >= 2 {
		return format.Factor(d.ratio)
	}
	if d.ci != nil && d.half() < 0.005 {
		return format.Percent(math.Abs(d.ratio - 1))
	}
	return format.Number(100*math.Abs(d.ratio-1), 0) + "\u00a0%"
}

// tallyAdvice chooses between the suite's subject and its object if all verdicts agree.
func (st *suiteTables) tallyAdvice() string {
	total, better, worse := 0, 0, 0
	for _, t := range st.workloads {
		all, ahead, behind := t.tallied()
		total, better, worse = total+all, better+ahead, worse+behind
	}
	subject, object := format.Clean(st.Subject), format.Clean(st.Object)
	switch {
	case better+worse == 0:
		return st.undecided()
	case better == 0:
		return fmt.Sprintf("On this machine choose %s: it is better in %d of %s, and never worse.", object, worse, format.Count(total, "pair"))
	case worse == 0:
		return fmt.Sprintf("On this machine choose %s: it is better in %d of %s, and never worse.", subject, better, format.Count(total, "pair"))
	}
	return fmt.Sprintf("Choose by the pair: %s is better in %d of %s, %s in %d.", subject, better, format.Count(total, "pair"), object, worse)
}

// undecided is the advice where the suite's subject and object are not told apart.
func (st *suiteTables) undecided() string {
	return "This run does not tell which of " + format.Clean(st.Subject) + " and " + format.Clean(st.Object) + " is the better."
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
