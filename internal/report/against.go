// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strings"
)

// inTime says that ways are held against the reference by the time that a
// transaction takes.
func (s *set) inTime() bool {
	return s.suite == suiteLatency && strings.HasSuffix(s.workload, "rr") && !s.reading.counted
}

// toReference is how an entry stands to the reference; false where that is not
// known.
func (s *set) toReference(e *entry) (difference, bool) {
	if s.reference == nil || !s.reference.ok() || !e.ok() || e == s.reference {
		return difference{}, false
	}
	d := s.difference(e, s.reference)
	if s.inTime() {
		d = d.turned()
	}
	return d, d.ratio > 0
}

// referenceColumn makes the column of what each way is of the reference, in per
// cent, or, of times, of what it takes more; a tilde marks those in which no
// difference was found, a question mark those of too few rounds.
func (s *set) referenceColumn(rank int) column {
	if s.reference == nil {
		return column{}
	}
	head := []string{"% of ", s.reference.connection + " "}
	if s.inTime() {
		head = []string{"time against ", s.reference.connection + ", % "}
	}
	c := s.text(rank, func(e *entry) string {
		d, ok := s.toReference(e)
		switch {
		case e == s.reference && e.ok() && s.inTime():
			return "0.0 "
		case e == s.reference && e.ok():
			return "100.0 "
		case !ok:
			return none + " "
		case e.repeat: // any difference is the machine's
			return s.share(d.ratio) + " "
		}
		return s.share(d.ratio) + d.verdict.sign()
	}, head...)
	c.right = true
	return c
}

// share prints a ratio to the reference in per cent: all of it, or, of times, what
// is above one.
func (s *set) share(r float64) string {
	if !s.inTime() {
		return number(100*r, 1)
	}
	text := number(100*(r-1), 1)
	if r > 1 && math.Abs(r-1) >= 0.0005 {
		text = "+" + text
	}
	return text
}

// referenceInterval prints the interval of what stands in that column.
func (s *set) referenceInterval(e *entry) string {
	d, ok := s.toReference(e)
	if !ok || d.ci == nil {
		return none
	}
	return s.share(d.ci[0]) + " to " + s.share(d.ci[1])
}

// meanColumn makes the column of the mean time of a transaction.
func (s *set) meanColumn(rank int) column {
	c := s.figures(rank, []string{"mean", "µs"}, s.meanLatency)
	c.right = true
	return c
}

// referenceFigure shows each way over the reference, of the suite that is about
// small differences from it.
func (s *set) referenceFigure(face typeface) figure {
	if s.suite != suiteLatency && s.suite != suiteCNI || s.reference == nil {
		return figure{}
	}
	f := figure{Title: s.name + ": " + s.unit + " / " + s.reference.connection}
	f.Caption = "Ratio to " + s.reference.connection + ", within each round."
	if s.inTime() {
		f.Title = s.name + ": time of a transaction / " + s.reference.connection
		f.Caption += " At the line a way adds nothing; right of it, it takes longer."
	}
	if ofCalls(s.workload) {
		f.Caption += " Left of the line a plugin is faster."
	}
	marks, shown, cut := s.referenceMarks()
	f.Caption += " Whiskers, where there are enough rounds, are 95\u00a0% intervals; “tied” means that no difference was found."
	if cut {
		f.Caption += " Intervals that reach far beyond the ratios are cut off; the tables have them."
	}
	if s.spread.pairs > 0 {
		f.Caption += " The band (± " + percent(s.spread.share) + ") is the spread of the same thing measured twice (A/A)."
	}
	return f.drawRatios(face, marks, shown, min(s.spread.share, 1))
}

// farAway is how many times the largest ratio a chart shows of an interval.
const farAway = 2

// referenceMarks are the marks of that figure, and whether any interval is cut.
func (s *set) referenceMarks() (marks []mark, shown []*entry, cut bool) {
	largest := 1.0
	for _, e := range s.measured() {
		if d, ok := s.toReference(e); ok {
			largest = max(largest, d.ratio)
		}
	}
	for _, e := range s.measured() {
		d, ok := s.toReference(e)
		if !ok {
			continue
		}
		m := mark{label: s.label(e), ink: kindOf(e).ink, value: d.ratio, low: d.ratio, high: d.ratio, text: ratio(d.ratio)}
		if d.ci != nil {
			m.low, m.high = d.ci[0], min(d.ci[1], farAway*largest)
			cut = cut || m.high < d.ci[1]
		}
		switch d.verdict {
		case tied:
			m.text += " tied"
		case tooFew:
			m.text += " ?"
		case lower, higher:
		}
		shown = append(shown, e)
		marks = append(marks, m)
	}
	return marks, shown, cut
}
