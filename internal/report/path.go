// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// Classes of steps, in the order of tables.
const (
	Sockets   = "sockets and TCP"
	Devices   = "devices"
	Softirqs  = "softirqs"
	Routing   = "routing"
	Netfilter = "netfilter"
	Programs  = "BPF programs"
	Threads   = "threads"
)

type class struct {
	name, color string
	// noun names the steps of kinds, which Total.Count counts. moreNoun and moreKinds belong to Total.More.
	noun, moreNoun   string
	kinds, moreKinds []string
}

var classes = []class{
	{Sockets, "#4e79a7", "packet", "wake-up", []string{"send", "tcp"}, []string{"wake"}},
	{Devices, "#59a14f", "packet", "", []string{"transmit", "receive"}, nil},
	{Softirqs, "#b07aa1", "run", "", []string{"softirq"}, nil},
	{Routing, "#d9822b", "look-up", "", []string{"route"}, nil},
	{Netfilter, "#c7444a", "hook", "", []string{"hook"}, nil},
	{Programs, "#2a9d9d", "run", "", []string{"program"}, nil},
	{Threads, "#8a8a8a", "switch", "call", []string{"run"}, []string{"sent", "read"}},
}

func classOf(name string) class {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	if i < 0 {
		return class{name: name, color: "#8a8a8a"}
	}
	return classes[i]
}

// Total is the steps of one class.
type Total struct {
	Class string `json:"class"`
	// Count is the number of its events of note: packets sent and received by a socket or a
	// device, softirqs, look-ups, hooks, runs of programs, and switches between threads.
	Count int `json:"count"`
	// More is the number of its other steps of note: readers woken, and calls of threads.
	More int     `json:"more,omitempty"`
	Sum  float64 `json:"sum"`
}

// String returns the class and its counts in words.
func (t Total) String() string {
	var counts []string
	c := classOf(t.Class)
	if t.Count > 0 {
		counts = append(counts, countOf(t.Count, c.noun))
	}
	if t.More > 0 {
		counts = append(counts, countOf(t.More, c.moreNoun))
	}
	if len(counts) == 0 {
		return t.Class
	}
	return fmt.Sprintf("%s (%s)", t.Class, strings.Join(counts, ", "))
}

// Totals returns the sums of all classes, in their order.
func Totals(steps []result.Step) (totals []Total) {
	for _, c := range classes {
		t := Total{Class: c.name}
		for _, s := range steps {
			switch {
			case s.Class != c.name:
				continue
			case slices.Contains(c.kinds, s.Kind):
				t.Count++
			case slices.Contains(c.moreKinds, s.Kind):
				t.More++
			}
			t.Sum += s.Time
		}
		totals = append(totals, t)
	}
	return totals
}

// StepFigure returns the time of a step: "<" and a bound if it is too short.
func StepFigure(s result.Step) string {
	if s.Time == 0 && s.Cost > 0 {
		return "<" + Number(math.Ceil(s.Cost), 0)
	}
	return Number(s.Time, 0)
}

// Path is what a row's packets cross, as drawn.
type Path struct {
	// Title is above its drawing, unless it is empty, and Note below that.
	Title, Note string
	// Clock is the unit of the figures.
	Clock string
	Steps []result.Step
}

// NewPath returns the path of a trace in the unit of a clock.
func NewPath(title string, t result.Trace, clock string) Path {
	p := Path{Title: title, Clock: clock, Steps: t.Steps, Note: fmt.Sprintf(
		"%s %s without tracing, steps of %d transactions", Number(t.UntracedNS, 0), clock, t.Alike)}
	if len(t.Omitted) > 0 {
		p.Note += "; not shown: " + strings.Join(t.Omitted, ", ")
	}
	return p
}
