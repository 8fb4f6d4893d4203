// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/result"
)

// meanLatency is the mean time of a transaction in microseconds, as each
// connection has one at a time; 0 where there is none.
func (s *set) meanLatency(e *entry) float64 {
	if e.Unit != result.UnitTransactions || e.Median <= 0 {
		return 0
	}
	return float64(s.flows) * 1e6 / e.Median
}

// latencyAnswer says what each way adds to the reference.
func (s *set) latencyAnswer() answer {
	a := answer{Name: s.name, Lead: s.noReference()}
	if a.Lead != "" {
		return a
	}
	base := s.figure(s.reference)
	if mean := s.meanLatency(s.reference); mean > 0 {
		base += ", " + number(mean, fewDecimals(mean)) + " µs on average"
	}
	found := s.against(func(d difference) string {
		switch {
		case s.unit != result.UnitTransactions:
			return s.says(d)
		case d.verdict == lower:
			return d.turned().size(" more time")
		default:
			return d.turned().size(" less time")
		}
	})
	a.Lead = "against " + s.reference.connection + ", a transaction takes: " + found + "."
	if !strings.HasSuffix(s.workload, "rr") {
		a.Lead = "against " + s.reference.connection + ": " + found + "."
	}
	a.More = []string{fmt.Sprintf("%s itself: %s.%s", s.reference.connection, base, s.missing())}
	return a
}

// noReference says why nothing can be held against the reference; nothing if it
// can.
func (s *set) noReference() string {
	switch {
	case s.reference == nil:
		return "nothing was measured that the others could be held against." + s.missing()
	case !s.reference.ok():
		return s.reference.connection + " has no figure, so nothing can be held against it." + s.missing()
	case len(s.measured()) < 2:
		return s.reference.connection + " is the only way with a figure: " + s.figure(s.reference) + "." + s.missing()
	}
	return ""
}

// dockerAnswer says what each mode costs against the reference.
func (s *set) dockerAnswer() answer {
	a := answer{Name: s.name, Lead: s.noReference()}
	if a.Lead != "" {
		return a
	}
	a.Lead = "against " + s.reference.connection + " (" + s.figure(s.reference) + "): " + s.against(s.says) + "." + s.missing()
	a.More = s.pairs()
	return a
}
