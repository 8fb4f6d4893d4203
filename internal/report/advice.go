// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// advice says what to do, from verdicts alone.
func (st *suiteTables) advice() string {
	switch {
	case st.Answer[0] == result.AnswerTally:
		return st.tallyAdvice()
	case st.statesPairs():
		return ""
	}
	var common []string
	var each []string
	stands, told := false, false
	for i, t := range st.workloads {
		contenders := t.contenders(true)
		best, apart, ok := t.best(contenders)
		if !ok || len(apart) > 0 || len(contenders) < 2 {
			continue
		}
		stands = stands || len(best) < len(contenders)
		if here := names(best); !told {
			common = here
		} else {
			common = slices.DeleteFunc(common, func(name string) bool { return !slices.Contains(here, name) })
		}
		told = true
		each = append(each, choice(names(best))+" for "+lowerFirst(st.workloads[i].name))
	}
	one, _, short := st.workloads[0].nouns()
	on := "On this machine choose "
	if st.counted {
		on = "By instructions choose "
	}
	switch {
	case !told:
		return "This run names no best " + one + "."
	case !stands:
		return "No " + one + " stands out in this run." + st.proxyAdvice()
	case len(common) == 0:
		return on + strings.Join(each, ", ") + "." + st.proxyAdvice()
	case len(common) > 1:
		return on + choice(common) + ": no difference was found between them." + st.proxyAdvice()
	case len(each) < len(st.workloads):
		return on + each[0] + "; the other workloads name no best " + short + "." + st.proxyAdvice()
	}
	return on + shortName(common[0]) + "." + st.proxyAdvice()
}

// choice joins names, at most four of them, as alternatives.
func choice(names []string) string {
	rest := ""
	if more := len(names) - manyNames; more > 1 {
		names, rest = names[:manyNames], fmt.Sprintf(" (or one of %d others)", more)
	}
	var short []string
	for _, name := range names {
		short = append(short, shortName(name))
	}
	text := list(short)
	if i := strings.LastIndex(text, " and "); i >= 0 {
		text = text[:i] + " or " + text[i+len(" and "):]
	}
	return text + rest
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
				figures = fmt.Sprintf(": %s against %s (%s, %s)", a, b, shortName(pod.name), lowerFirst(t.name))
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
	d := difference{t.verdictOn(*e.cost), e.cost.Ratio, e.cost.CI95}
	if !t.wording.worse(d.verdict) || d.rough() {
		return ""
	}
	if d.ratio >= 2 {
		return Factor(d.ratio)
	}
	if d.ci != nil && d.half() < 0.005 {
		return percent(math.Abs(d.ratio - 1))
	}
	return number(100*math.Abs(d.ratio-1), 0) + "\u00a0%"
}

// tallyAdvice chooses between the suite's subject and its object if all verdicts agree.
func (st *suiteTables) tallyAdvice() string {
	total, better, worse := 0, 0, 0
	for _, t := range st.workloads {
		all, ahead, behind := t.tallied()
		total, better, worse = total+all, better+ahead, worse+behind
	}
	subject, object := clean(st.Subject), clean(st.Object)
	switch {
	case better+worse == 0:
		return "This run does not tell which of " + subject + " and " + object + " is the better."
	case better == 0:
		return fmt.Sprintf("On this machine choose %s: it is better in %d of %s, and never worse.", object, worse, count(total, "pair"))
	case worse == 0:
		return fmt.Sprintf("On this machine choose %s: it is better in %d of %s, and never worse.", subject, better, count(total, "pair"))
	}
	return fmt.Sprintf("Choose by the pair: %s is better in %d of %s, %s in %d.", subject, better, count(total, "pair"), object, worse)
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
