// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"

	"mustang/internal/result"
)

// Names of the suites whose answers have words of their own.
const (
	suiteInterfaces = "interfaces"
	suiteLatency    = "latency"
	suitePodLinks   = "pod-links"
	suiteSwitching  = "switching"
	suiteDocker     = "docker"
	suiteCNI        = "cni"
)

// suite is a part of the report: the sets that answer one question.
type suite struct {
	name     string
	question string
	anchor   string // unique in the page and safe in a URL
	sets     []*set
}

// suiteQuestion is what a suite answers, of rates and of counted instructions.
type suiteQuestion struct{ name, timed, counted string }

// suiteQuestions are the questions that the suites answer, in the order in
// which they are shown.
func suiteQuestions() []suiteQuestion {
	return []suiteQuestion{
		{suiteInterfaces,
			"How fast is each virtual network interface of Linux?",
			"How many instructions does each virtual network interface of Linux take?"},
		{suiteLatency,
			"What does a container's network interface add to the latency between two hosts?",
			"How many instructions does a container's network interface add between two hosts?"},
		{suitePodLinks,
			"Which way of connecting the pods of one host is the fastest, and what does a cluster IP cost in each?",
			"Which way of connecting the pods of one host takes the fewest instructions, and what does a cluster IP cost in each?"},
		{suiteSwitching,
			"Is a Linux bridge or Open vSwitch faster, for namespaces and for virtual machines, on one host and across two, with and without VXLAN?",
			"Does a Linux bridge or Open vSwitch take fewer instructions, on one host and across two, with and without VXLAN?"},
		{suiteDocker,
			"What does each of Docker's network modes cost?",
			"How many instructions does each of Docker's network modes cost?"},
		{suiteCNI,
			"How fast does a CNI plugin attach and detach a pod?",
			"How fast does a CNI plugin attach and detach a pod? (Timed runs tell.)"},
	}
}

// newSuites makes the suites that f has rows of: those that are known first, the
// others in the file's order.
func newSuites(f result.File) []*suite {
	var names []string
	for _, row := range f.Rows {
		if !slices.Contains(names, row.Suite) {
			names = append(names, row.Suite)
		}
	}
	var out []*suite
	for _, known := range suiteQuestions() {
		if slices.Contains(names, known.name) {
			question := known.timed
			if f.Run.Counted() {
				question = known.counted
			}
			out = append(out, &suite{name: known.name, question: question, anchor: known.name})
			names = slices.DeleteFunc(names, func(name string) bool { return name == known.name })
		}
	}
	for _, name := range names {
		out = append(out, &suite{name: name, question: clean(name), anchor: fmt.Sprintf("suite-%d", len(out)+1)})
	}
	return out
}

// namedByID says that the IDs of a suite's rows are the best names of its ways.
func namedByID(suite string) bool {
	return slices.Contains([]string{suiteInterfaces, suiteLatency, suiteSwitching, suiteDocker, suiteCNI}, suite)
}

// hasReference says that all ways of a suite are held against one of them.
func hasReference(suite string) bool {
	return namedByID(suite) && suite != suiteSwitching
}

// belongs says whether a comparison is of a suite: a name that it does not have
// is that of the run, or, in a run of several, that of a suite with its rows.
func (v *view) belongs(c result.Comparison, name string) bool {
	if c.Suite != "" {
		return c.Suite == name
	}
	if slices.ContainsFunc(v.file.Rows, func(r result.Row) bool { return r.Suite == v.file.Run.Suite }) {
		return v.file.Run.Suite == name
	}
	return slices.ContainsFunc(v.file.Rows, func(r result.Row) bool { return r.Suite == name && r.ID == c.Numerator })
}

// setReference finds the way that all others of the set are held against: the one
// below the line of the most comparisons, or the first that connects hosts only.
func (s *set) setReference() {
	if !hasReference(s.suite) {
		return
	}
	votes := map[string]int{}
	for _, c := range s.comparisons {
		if !c.AA {
			votes[c.Denominator]++
		}
	}
	for _, e := range s.entries {
		if e.repeat || votes[e.ID] == 0 && e.Link != "host" {
			continue
		}
		if s.reference == nil || votes[e.ID] > votes[s.reference.ID] {
			s.reference = e
		}
	}
}

// entry finds the entry of an ID, or returns nil.
func (s *set) entry(id string) *entry {
	for _, e := range s.entries {
		if e.ID == id {
			return e
		}
	}
	return nil
}
