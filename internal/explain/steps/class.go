// SPDX-License-Identifier: Apache-2.0

// Package steps sums up and draws the steps of a path that was traced.
package steps

import (
	"fmt"
	"math"
	"slices"
	"strconv"
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

// class is how the steps of a class are drawn and counted.
type class struct {
	name, color string
	// Total.Count counts the steps of kinds by a noun, and Total.More those of moreKinds by another.
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

// classOf returns a class by its name.
func classOf(name string) class {
	i := slices.IndexFunc(classes, func(c class) bool { return c.name == name })
	if i < 0 {
		return class{name: name, color: "#8a8a8a"}
	}
	return classes[i]
}

// Classes returns the names of all classes.
func Classes() (names []string) {
	for _, c := range classes {
		names = append(names, c.name)
	}
	return names
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
		counts = append(counts, Number(t.Count, c.noun))
	}
	if t.More > 0 {
		counts = append(counts, Number(t.More, c.moreNoun))
	}
	if len(counts) == 0 {
		return t.Class
	}
	return fmt.Sprintf("%s (%s)", t.Class, strings.Join(counts, ", "))
}

// Number returns a number of things in words.
func Number(n int, name string) string {
	switch {
	case n == 1:
		return "1 " + name
	case strings.HasSuffix(name, "ch"):
		name += "e"
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// Totals returns the sums of all classes that have steps.
func Totals(steps []result.Step) (totals []Total) {
	for _, c := range classes {
		t, found := Total{Class: c.name}, false
		for _, s := range steps {
			if s.Class != c.name {
				continue
			}
			found = true
			t.Sum += s.Time
			switch {
			case slices.Contains(c.kinds, s.Kind):
				t.Count++
			case slices.Contains(c.moreKinds, s.Kind):
				t.More++
			}
		}
		if found {
			totals = append(totals, t)
		}
	}
	return totals
}

// Figure returns a figure without decimals, with commas.
func Figure(value float64) string {
	digits := strconv.FormatFloat(math.Round(math.Abs(value)), 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if value <= -0.5 {
		return "-" + digits
	}
	return digits
}

// StepFigure returns the time of a step: "<" and a bound if it is too short to be told.
func StepFigure(s result.Step) string {
	if s.Time == 0 && s.Cost > 0 {
		return "<" + Figure(math.Ceil(s.Cost))
	}
	return Figure(s.Time)
}
