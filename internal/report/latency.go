// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"

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

// referenceAnswer says what each way costs against the reference.
func (s *set) referenceAnswer() answer {
	a := answer{Name: s.name, Lead: s.noReference()}
	if a.Lead != "" {
		return a
	}
	base := s.figure(s.reference)
	if mean := s.meanLatency(s.reference); mean > 0 {
		base += ", " + number(mean, fewDecimals(mean)) + " µs on average"
	}
	words := []string{s.reading.lower, s.reading.higher}
	inTime := s.inTime()
	if inTime {
		words = []string{"more time per transaction", "less time per transaction"}
	} else if s.reading.counted {
		words = []string{"more instructions", "fewer instructions"}
	}
	lines := s.standing(func(d difference) string {
		if inTime {
			d = d.turned()
		}
		return d.size("")
	}).against(words[0], words[1], s.reference.connection)
	a.Lead = lines[0]
	for _, line := range lines[1:] {
		a.More = append(a.More, upperFirst(line))
	}
	a.More = append(a.More, fmt.Sprintf("%s itself: %s.%s", s.reference.connection, base, s.missing()))
	a.More = append(a.More, s.pairs()...)
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
