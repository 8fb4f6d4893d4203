// SPDX-License-Identifier: Apache-2.0

package explain

import "fmt"

// Classes of steps, in the order of tables.
const (
	classSockets   = "sockets and TCP"
	classDevices   = "devices"
	classSoftirqs  = "softirqs"
	classRouting   = "routing"
	classNetfilter = "netfilter"
	classPrograms  = "BPF programs"
	classThreads   = "threads"
)

// classes returns all classes.
func classes() []string {
	return []string{classSockets, classDevices, classSoftirqs, classRouting, classNetfilter, classPrograms, classThreads}
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
		classSockets:   {[]string{"send", "tcp"}, "packet at sockets", "packets at sockets"},
		classDevices:   {[]string{"transmit", "receive"}, "packet at devices", "packets at devices"},
		classSoftirqs:  {[]string{"softirq"}, "softirq", "softirqs"},
		classRouting:   {[]string{"route"}, "route look-up", "route look-ups"},
		classNetfilter: {[]string{"hook"}, "netfilter hook", "netfilter hooks"},
		classPrograms:  {[]string{"program"}, "run of a BPF program", "runs of BPF programs"},
		classThreads:   {[]string{"run"}, "switch to a thread", "switches to a thread"},
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
func (e Explanation) Totals() (totals []Total) {
	for _, class := range classes() {
		t := Total{Class: class}
		for _, s := range e.Steps {
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
