// SPDX-License-Identifier: Apache-2.0

package result

import (
	"cmp"
	"strings"
)

// Values of [Step.Direction].
const (
	Request = "request"
	Reply   = "reply"
)

// Trace is what the packets of a row crossed in a transaction of one byte each way over TCP. It was measured by
// tracing, apart from the samples.
type Trace struct {
	// Suite and ID name the row.
	Suite string `json:"suite"`
	ID    string `json:"id"`
	// Transactions is the number of transactions that were traced, and Alike that of those that took Steps.
	Transactions int     `json:"transactions"`
	Alike        int     `json:"alike"`
	UntracedNS   float64 `json:"untraced_ns"` // the median transaction without tracing, in nanoseconds
	Steps        []Step  `json:"steps"`       // in the order in which they begin. Their times are nanoseconds.
	// Omitted are classes of steps whose order varied between transactions. Their time is in the steps before them.
	Omitted []string `json:"omitted,omitempty"`
}

// Step is one step of a path. Its time lasts until the next step begins, with the time after an inner step (a hook, a
// BPF program) has returned to it.
type Step struct {
	Direction string `json:"direction"` // "request" or "reply"
	Class     string `json:"class"`     // what the step belongs to, such as "devices" or "softirqs"
	Kind      string `json:"kind"`      // what happens, such as "transmit"
	// Place is a place of the lab. That of a softirq, and of a look-up that found nothing, is the place of the step
	// before.
	Place  string `json:"place,omitempty"`
	Device string `json:"device,omitempty"` // the device that a packet is at
	Name   string `json:"name,omitempty"`   // the name of a hook, BPF program, softirq or process
	// Redirects says that a BPF program sent the packet on: the step lasts until the packet is seen again.
	Redirects bool `json:"redirects,omitempty"`
	// Cost is the cost of recording the step, which its figures are less of. A step that would be negative is 0: it is
	// shorter than the cost.
	Cost float64 `json:"cost"`
	// Time is the mean, and Low and High are the quartiles, over the half of the alike transactions whose duration is in
	// the middle.
	Time float64 `json:"time"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// stepWords describes the steps by their kind.
var stepWords = map[string]string{
	"send": "NAME sends", "sent": "NAME has sent", "read": "NAME has read", "wake": "NAME is woken",
	"tcp": "TCP receives from DEVICE", "transmit": "DEVICE transmits", "queue": "DEVICE queues for NET_RX",
	"receive": "DEVICE receives", "route": "route look-up", "hook": "netfilter NAME",
	"program": "BPF program NAME at DEVICE", "raise": "softirq NAME is raised", "softirq": "softirq NAME",
	"softirq end": "softirq NAME ends",
}

// String returns the step in words, without its place.
func (s Step) String() string {
	words := cmp.Or(stepWords[s.Kind], "NAME runs")
	if s.Kind == "program" && s.Redirects {
		words += " redirects"
	}
	return strings.NewReplacer("NAME", s.Name, "DEVICE", s.Device).Replace(words)
}
