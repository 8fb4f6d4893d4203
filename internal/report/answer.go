// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

// answer is what a workload's rows say, in words.
type answer struct {
	Name string   // the workload
	Lead string   // the answer to the suite's question
	More []string // what else is to say
}

// answers gives one answer for each workload of a suite.
func (su *suite) answers() []answer {
	var out []answer
	for _, s := range su.sets {
		a := s.answer()
		a.Lead = together(a.Lead)
		for i := range a.More {
			a.More[i] = together(a.More[i])
		}
		out = append(out, a)
	}
	return out
}

// answer puts the set's rows in words: those of its suite.
func (s *set) answer() answer {
	switch s.suite {
	case suiteInterfaces:
		return s.interfacesAnswer()
	case suiteLatency, suiteDocker:
		return s.referenceAnswer()
	case suiteSwitching:
		return s.switchingAnswer()
	case suiteCNI:
		return s.callsAnswer()
	}
	return answer{Name: s.name, Lead: s.fastest(), More: []string{s.costs()}}
}

// together keeps a line from breaking within names and figures.
func together(s string) string {
	return strings.NewReplacer(" + eBPF", "\u00a0+\u00a0eBPF", "95 % interval", "95\u00a0%\u00a0interval", " Gbit/s", "\u00a0Gbit/s", " ms", "\u00a0ms", " instructions/", "\u00a0instructions/").Replace(s)
}

// noun is what is ranked: "way", and what follows it.
type noun struct{ one, rest string }

// fastest says which connection has the best figure at the pod IP, and which
// others can't be told from it.
func (s *set) fastest() string {
	var pods []*entry
	for _, e := range s.entries {
		if e.Target == result.TargetPodIP && !e.baseline && !e.repeat {
			pods = append(pods, e)
		}
	}
	return s.first(pods, noun{"way", " of connecting pods"})
}

// first says which of entries has the best figure, and which others can't be told
// from it.
func (s *set) first(entries []*entry, n noun) string {
	pods := slices.DeleteFunc(slices.Clone(entries), func(e *entry) bool { return !e.ok() })
	rest := ""
	if missing := len(entries) - len(pods); missing > 0 {
		rest = fmt.Sprintf(" %s skipped or failed.", wasWere(missing, "other "+n.one))
	}
	if len(pods) == 0 {
		return "no " + n.one + n.rest + " has a figure." + rest
	}
	slices.SortStableFunc(pods, func(a, b *entry) int {
		return compareBool(s.reading.better(b.Median, a.Median), s.reading.better(a.Median, b.Median))
	})
	best := pods[0]
	places := decimals(best.Median)
	figure := number(best.Median, places) + " " + s.unit
	if best.CI95 != nil {
		figure += ", 95 % interval " + interval(best.CI95, places)
	}
	if len(pods) == 1 {
		return fmt.Sprintf("%s is the only %s%s with a figure: %s.%s", best.connection, n.one, n.rest, figure, rest)
	}
	ties := []string{best.connection}
	for _, e := range pods[1:] {
		switch s.compare(best, e) {
		case tooFew:
			return fmt.Sprintf("%s has the %s median (%s), but %s too few to say which %s is the best.%s",
				best.connection, s.reading.extreme, figure, isAre(len(best.Samples), "round"), n.one, rest)
		case tied:
			ties = append(ties, e.connection)
		case lower, higher:
		}
	}
	if len(ties) == 1 {
		return fmt.Sprintf("%s %s of %d %ss%s%s (%s).%s",
			best.connection, s.reading.best, len(pods), n.one, n.rest, s.reading.where, figure, rest)
	}
	if len(ties) == len(pods) {
		return fmt.Sprintf("no %s%s stands out%s: no difference was found between %s, which has the %s median (%s), and %s.%s",
			n.one, n.rest, s.reading.where, best.connection, s.reading.extreme, figure, list(ties[1:]), rest)
	}
	return fmt.Sprintf("%s %s of %d %ss%s%s: no difference was found between %s, which has the %s median (%s), and %s.%s",
		list(ties), s.reading.tied, len(pods), n.one, n.rest, s.reading.where, best.connection, s.reading.extreme, figure, theOthers(len(ties)-1), rest)
}

// list joins names as a sentence does.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

func isAre(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " is"
	}
	return count(n, noun) + " are"
}

func wasWere(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " was"
	}
	return count(n, noun) + " were"
}

func theOthers(n int) string {
	if n == 1 {
		return "the other"
	}
	return "the others"
}
