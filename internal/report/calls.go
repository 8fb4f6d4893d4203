// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/result"
)

// ofCalls says that a workload is calls of plugins.
func ofCalls(workload string) bool {
	return workload == result.WorkloadCNIAdd || workload == result.WorkloadCNIDel
}

// nameCalls names a set of calls, of which there may be others with another number
// at once.
func (s *set) nameCalls() {
	verb := s.name
	if s.flows == 1 {
		s.name, s.short = verb+", one at a time", verb+", 1"
		s.plain = ""
		return
	}
	s.name, s.short, s.plain = fmt.Sprintf("%s, %d at once", verb, s.flows), fmt.Sprintf("%s, %d", verb, s.flows), ""
}

// events is what the set's latencies are of.
func (s *set) events() string {
	if ofCalls(s.workload) {
		return "calls"
	}
	return "transactions"
}

// latencyUnit is the unit that latencies are shown in, and latency one of
// microseconds in it.
func (s *set) latencyUnit() string {
	if ofCalls(s.workload) {
		return "ms"
	}
	return "µs"
}

func (s *set) latency(micros float64) float64 {
	if ofCalls(s.workload) {
		return micros / 1e3
	}
	return micros
}

// callsAnswer says which plugin is the fastest, and how each stands to the
// reference.
func (s *set) callsAnswer() answer {
	a := answer{Name: s.name, Lead: s.first(s.withoutRepeats(), noun{one: "plugin"})}
	if s.noReference() != "" {
		return a
	}
	lines := s.standing(func(d difference) string { return d.size("") }).against("more time", "less time", s.reference.connection)
	for _, line := range lines {
		a.More = append(a.More, upperFirst(line))
	}
	a.More = append(a.More, s.each("99 of 100 calls took less than: ", " ms", func(e *entry) float64 {
		if e.LatencyUS == nil {
			return 0
		}
		return s.latency(e.LatencyUS.P99)
	}), s.each("Calls done in a second: ", "", func(e *entry) float64 { return e.CallsPerSecond }))
	a.More = append(a.More, s.pairs()...)
	out := a.More[:0]
	for _, line := range a.More {
		if line != "" {
			out = append(out, line)
		}
	}
	a.More = out
	return a
}

// each lists a figure of each measured entry; nothing if none has it.
func (s *set) each(words, unit string, figure func(*entry) float64) string {
	var parts []string
	for _, e := range s.measured() {
		if v := figure(e); v > 0 {
			parts = append(parts, e.connection+" "+number(v, fewDecimals(v))+unit)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return words + strings.Join(parts, ", ") + "."
}

// tailColumn makes the column of the 99th percentile against that of the
// reference. It has no interval: it is of all rounds together.
func (s *set) tailColumn() column {
	if !ofCalls(s.workload) || s.reference == nil || !s.reference.ok() || s.reference.LatencyUS == nil {
		return column{}
	}
	base := s.reference.LatencyUS.P99
	return s.text(5, func(e *entry) string {
		if !e.ok() || e.LatencyUS == nil || base <= 0 {
			return none
		}
		return number(100*e.LatencyUS.P99/base, 1)
	}, "p99, % of", s.reference.connection)
}

// perSecondColumn makes the column of the calls that were done in a second.
func (s *set) perSecondColumn() column {
	return s.figures(3, []string{"calls", "per s"}, func(e *entry) float64 { return e.CallsPerSecond })
}
