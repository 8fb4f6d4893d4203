// SPDX-License-Identifier: Apache-2.0

// Package steps sums up and draws the steps of a path that was traced.
package steps

import (
	"fmt"
	"math"
	"strconv"

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
	Count int     `json:"count"`
	Sum   float64 `json:"sum"`
}

// nouns are what [Total.Count] counts, by class: the kind of step, and its name.
func nouns() map[string]noun {
	return map[string]noun{
		Sockets:   {[]string{"send", "tcp"}, "packet at sockets", "packets at sockets"},
		Devices:   {[]string{"transmit", "receive"}, "packet at devices", "packets at devices"},
		Softirqs:  {[]string{"softirq"}, "softirq", "softirqs"},
		Routing:   {[]string{"route"}, "route look-up", "route look-ups"},
		Netfilter: {[]string{"hook"}, "netfilter hook", "netfilter hooks"},
		Programs:  {[]string{"program"}, "run of a BPF program", "runs of BPF programs"},
		Threads:   {[]string{"run"}, "switch to a thread", "switches to a thread"},
	}
}

// noun names what a class counts.
type noun struct {
	kinds     []string
	one, many string
}

// String returns the count in words.
func (t Total) String() string {
	n := nouns()[t.Class]
	if t.Count == 1 || t.Count == -1 {
		return fmt.Sprintf("%d %s", t.Count, n.one)
	}
	return fmt.Sprintf("%d %s", t.Count, n.many)
}

// Totals returns the sums of all classes.
func Totals(steps []result.Step) (totals []Total) {
	for _, class := range Classes() {
		t := Total{Class: class}
		for _, s := range steps {
			if s.Class != class {
				continue
			}
			t.Sum += s.Median
			for _, kind := range nouns()[class].kinds {
				if s.Kind == kind {
					t.Count++
				}
			}
		}
		if t.Count > 0 || t.Sum > 0 {
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
