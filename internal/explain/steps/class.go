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

// Classes returns all classes.
func Classes() []string {
	return []string{Sockets, Devices, Softirqs, Routing, Netfilter, Programs, Threads}
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

// noun is what is counted of a class: steps of some kinds.
type noun struct {
	kinds []string
	name  string
}

// nouns returns what [Total.Count] and [Total.More] count.
func nouns() map[string][2]noun {
	return map[string][2]noun{
		Sockets:   {{[]string{"send", "tcp"}, "packet"}, {[]string{"wake"}, "wake-up"}},
		Devices:   {{[]string{"transmit", "receive"}, "packet"}},
		Softirqs:  {{[]string{"softirq"}, "run"}},
		Routing:   {{[]string{"route"}, "look-up"}},
		Netfilter: {{[]string{"hook"}, "hook"}},
		Programs:  {{[]string{"program"}, "run"}},
		Threads:   {{[]string{"run"}, "switch"}, {[]string{"sent", "read"}, "call"}},
	}
}

// String returns the class and its counts in words.
func (t Total) String() string {
	var counts []string
	for i, n := range []int{t.Count, t.More} {
		if n > 0 {
			counts = append(counts, Number(n, nouns()[t.Class][i].name))
		}
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

// Totals returns the sums of all classes.
func Totals(steps []result.Step) (totals []Total) {
	for _, class := range Classes() {
		t, counted, found := Total{Class: class}, nouns()[class], false
		for _, s := range steps {
			if s.Class != class {
				continue
			}
			found = true
			t.Sum += s.Time
			switch {
			case slices.Contains(counted[0].kinds, s.Kind):
				t.Count++
			case slices.Contains(counted[1].kinds, s.Kind):
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
