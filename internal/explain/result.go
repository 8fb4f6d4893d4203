// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"mustang/internal/explain/steps"
	"mustang/internal/result"
)

// Schema is the version of [Explanation] and [Comparison] as JSON.
const Schema = 1

// Clocks of an [Explanation]: the unit of its figures.
const (
	ClockTime         = "ns"
	ClockInstructions = "instructions"
)

// Directions of a [Step].
const (
	Request = steps.Request
	Reply   = steps.Reply
)

// Explanation is the path of a row's transactions, as measured. Figures are in
// nanoseconds, or instructions if Clock says so, of one transaction.
type Explanation struct {
	Schema int    `json:"schema"`
	Suite  string `json:"suite"`
	Row    string `json:"row"`
	Clock  string `json:"clock"`
	Kernel string `json:"kernel"`
	// Transactions is the number of transactions that were traced, and Alike that of those
	// that took Steps. The others met a timer, an ARP packet or other work of the machine.
	Transactions int `json:"transactions"`
	Alike        int `json:"alike"`
	// Steps are in the order in which they begin.
	Steps []Step `json:"steps"`
	// Sum is the sum of all steps.
	Sum float64 `json:"sum"`
	// Others is what the median of all traced transactions is longer than that of those that took Steps.
	Others float64 `json:"others"`
	// Untraced is the median transaction without tracing, and Traced with it, as the client sees them.
	Untraced float64 `json:"untraced"`
	Traced   float64 `json:"traced"`
	// Rounds are the medians of the runs without tracing, in their order.
	Rounds []float64 `json:"rounds"`
	// Events is the number of events of a transaction. EventCosts are the costs of
	// recording one, which the steps are less of, by what it is about: "packet", "socket",
	// "softirq"; and "spread", what each of them slows the code around it.
	Events     int                `json:"events"`
	EventCosts map[string]float64 `json:"event_costs"`
	// Counters are the kernel's, which the steps must agree with.
	Counters Counters `json:"counters"`
	// Omitted are classes of steps whose order varied between transactions, as where
	// programs wait for each other. Their time is in the steps before them.
	Omitted []string `json:"omitted,omitempty"`
	// Missing are probes that the kernel lacks.
	Missing []string `json:"missing,omitempty"`
}

// Step is one step of a path.
type Step = result.Step

// kindInfo describes a kind of event.
type kindInfo struct {
	name, class string
	cost        string // the sort of its probe
}

// Sorts of probes, whose cost differs.
const (
	costPacket  = "packet"
	costSocket  = "socket"
	costSoftirq = "softirq"
	costSpread  = "spread"
)

// costKinds are the kinds of events that are recorded twice, by the sort of their probe.
var costKinds = map[explainKind]string{
	explainKindKIND_TRANSMIT: costPacket, explainKindKIND_TCP: costSocket, explainKindKIND_SOFTIRQ: costSoftirq,
}

// kinds are what each kind of event means.
var kinds = map[explainKind]kindInfo{
	explainKindKIND_SEND:        {"send", steps.Sockets, costSocket},
	explainKindKIND_SENT:        {"sent", steps.Threads, costSocket},
	explainKindKIND_READ:        {"read", steps.Threads, costSocket},
	explainKindKIND_TCP:         {"tcp", steps.Sockets, costSocket},
	explainKindKIND_WAKE:        {"wake", steps.Sockets, costSocket},
	explainKindKIND_TRANSMIT:    {"transmit", steps.Devices, costPacket},
	explainKindKIND_QUEUE:       {"queue", steps.Devices, costPacket},
	explainKindKIND_RECEIVE:     {"receive", steps.Devices, costPacket},
	explainKindKIND_ROUTE:       {"route", steps.Routing, costSoftirq},
	explainKindKIND_HOOK:        {"hook", steps.Netfilter, costPacket},
	explainKindKIND_HOOK_END:    {"", steps.Netfilter, costPacket},
	explainKindKIND_PROGRAM:     {"program", steps.Programs, costPacket},
	explainKindKIND_PROGRAM_END: {"", steps.Programs, costPacket},
	explainKindKIND_RAISE:       {"raise", steps.Softirqs, costSoftirq},
	explainKindKIND_SOFTIRQ:     {"softirq", steps.Softirqs, costSoftirq},
	explainKindKIND_SOFTIRQ_END: {"softirq end", steps.Softirqs, costSoftirq},
	explainKindKIND_RUN:         {"run", steps.Threads, costSocket},
}
