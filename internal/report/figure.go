// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html/template"
	"strings"

	"mustang/internal/result"
)

// figure is a chart with what stands around it.
type figure struct {
	Title   string
	Caption string
	Legend  []kind
	SVG     template.HTML
}

// rowLabel names an entry below its connection.
func rowLabel(e *entry) string {
	if e.Via == result.ViaNone {
		return targetName(e.Target)
	}
	return targetName(e.Target) + ", " + viaName(e.Via)
}

// group is what an entry stands below in a chart: its connection, or the place of
// the switches; nothing where each way has but one row.
func (s *set) group(e *entry) string {
	if !s.byID {
		return e.connection
	}
	if s.suite == suiteSwitching {
		if strings.Count(e.ID, "/") < 2 {
			return "From host to host"
		}
		first, _, _ := strings.Cut(e.ID, "/")
		for _, p := range placeWords() {
			if p.place == first {
				return p.words
			}
		}
	}
	return ""
}

// label names an entry in its group.
func (s *set) label(e *entry) string {
	switch {
	case !s.byID:
		return rowLabel(e)
	case s.group(e) != "":
		_, rest, _ := strings.Cut(e.connection, "/")
		return rest
	}
	return e.connection
}

// rateFigure shows medians as bars with their intervals.
func (s *set) rateFigure(face typeface) figure {
	f := figure{Title: s.name + ", " + s.unit, Caption: "Median of all rounds. " + s.reading.direction}
	places := s.places()
	var marks []mark
	intervals := false
	for _, e := range s.measured() {
		m := mark{connection: s.group(e), label: s.label(e), ink: kindOf(e).ink, value: e.Median, text: number(e.Median, places)}
		if e.CI95 != nil {
			m.low, m.high = e.CI95[0], e.CI95[1]
			intervals = true
		}
		marks = append(marks, m)
	}
	if intervals {
		f.Caption += " Whiskers are 95\u00a0% intervals of the median."
	} else {
		f.Caption += " Too few rounds for intervals."
	}
	return f.draw(face, marks, shapeBar, s.measured())
}

// cpuFigure shows the CPU time per unit.
func (s *set) cpuFigure(face typeface) figure {
	f := figure{
		Title:   s.name + ": CPU time, µs per " + s.cpuUnit,
		Caption: "Busy time of the whole machine, median of all rounds. Shorter is better.",
	}
	var marks []mark
	var shown []*entry
	var all []float64
	for _, e := range s.measured() {
		if e.CPUUSPerUnit > 0 {
			shown = append(shown, e)
			all = append(all, e.CPUUSPerUnit)
		}
	}
	for _, e := range shown {
		marks = append(marks, mark{connection: s.group(e), label: s.label(e), ink: kindOf(e).ink, value: e.CPUUSPerUnit,
			text: number(e.CPUUSPerUnit, fewDecimals(all...))})
	}
	return f.draw(face, marks, shapeBar, shown)
}

// leastLatency is the least that a chart shows, in microseconds: no clock
// measures less, and a logarithmic scale has no zero.
const leastLatency = 1e-6

// latencyFigure shows the median and the 99th percentile of the latency.
func (s *set) latencyFigure(face typeface) figure {
	f := figure{Title: s.name + ": latency, " + s.latencyUnit()}
	var marks []mark
	var shown []*entry
	var all []float64
	for _, e := range s.measured() {
		if l := e.LatencyUS; l != nil && l.P50 >= leastLatency {
			shown = append(shown, e)
			all = append(all, s.latency(l.P99))
		}
	}
	for _, e := range shown {
		l, places := e.LatencyUS, fewDecimals(all...)
		marks = append(marks, mark{connection: s.group(e), label: s.label(e), ink: kindOf(e).ink, value: s.latency(l.P50), low: s.latency(l.P50), high: s.latency(l.P99),
			text: number(s.latency(l.P50), places) + " / " + number(s.latency(l.P99), places)})
	}
	f.Caption = "Dot: half of all " + s.events() + " took less (p50). Ring: 99 of 100 took less (p99). Left is better."
	if wideRange(marks) {
		f.Caption += " The scale is logarithmic."
	}
	return f.draw(face, marks, shapeDumbbell, shown)
}

// costFigure shows cluster IP over pod IP.
func (s *set) costFigure(face typeface) figure {
	if s.byID {
		return s.referenceFigure(face)
	}
	f := figure{Title: s.name + ": cluster IP / pod IP"}
	var marks []mark
	var shown []*entry
	intervals := false
	for _, e := range s.measured() {
		if e.cost == nil {
			continue
		}
		m := mark{connection: s.group(e), label: s.label(e), ink: kindOf(e).ink, value: e.cost.Ratio, low: e.cost.Ratio, high: e.cost.Ratio, text: ratio(e.cost.Ratio)}
		if ci := e.cost.CI95; ci != nil {
			m.low, m.high = ci[0], ci[1]
			intervals = true
		}
		switch s.spread.judge(*e.cost) {
		case tied:
			m.text += " tied"
		case tooFew:
			m.text += " ?"
		case lower, higher:
		}
		shown = append(shown, e)
		marks = append(marks, m)
	}
	f.Caption = "Ratio to the pod IP of the same connection, within each round. " + s.reading.costsAtRight
	if intervals {
		f.Caption += " Whiskers are 95\u00a0% intervals; “tied” means that no difference was found."
	} else {
		f.Caption += " Too few rounds for intervals."
	}
	if s.spread.pairs > 0 {
		f.Caption += fmt.Sprintf(" The band (± %s) is the spread of the same thing measured twice (A/A).", percent(s.spread.share))
	}
	return f.drawRatios(face, marks, shown, s.spread.share)
}
