// SPDX-License-Identifier: Apache-2.0

package explain

// Schema is the version of [Explanation] and [Comparison] as JSON.
const Schema = 1

// Clocks of an [Explanation]: the unit of its figures.
const (
	ClockTime         = "ns"
	ClockInstructions = "instructions"
)

// Directions of a [Step].
const (
	Request = "request"
	Reply   = "reply"
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
	// Untraced is the median transaction without tracing, and Traced with it, as the client
	// sees them.
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

// Step is one step of a path. Its time lasts until the next step begins, with the time
// after an inner step (a hook, a BPF program) has returned to it.
type Step struct {
	// Direction is [Request] or [Reply].
	Direction string `json:"direction"`
	// Class is what the step belongs to, such as "devices" or "softirqs".
	Class string `json:"class"`
	// Kind is what happens, such as "transmit".
	Kind string `json:"kind"`
	// Place is a place of the lab; empty for softirqs.
	Place string `json:"place,omitempty"`
	// Device is the device that a packet is at.
	Device string `json:"device,omitempty"`
	// Name is that of a hook, BPF program, softirq or process.
	Name string `json:"name,omitempty"`
	// Redirects says that a BPF program sent the packet on: the step lasts until the packet
	// is seen again.
	Redirects bool `json:"redirects,omitempty"`
	// Median, Low and High are the median and the quartiles over all alike transactions.
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

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

// costKinds returns the kinds of events that are recorded twice, by the sort of their probe.
func costKinds() map[explainKind]string {
	return map[explainKind]string{
		explainKindKIND_TRANSMIT: costPacket, explainKindKIND_TCP: costSocket, explainKindKIND_SOFTIRQ: costSoftirq,
	}
}

// kinds returns what each kind of event means.
func kinds() map[explainKind]kindInfo {
	return map[explainKind]kindInfo{
		explainKindKIND_SEND:        {"send", classSockets, costSocket},
		explainKindKIND_SENT:        {"sent", classThreads, costSocket},
		explainKindKIND_READ:        {"read", classThreads, costSocket},
		explainKindKIND_TCP:         {"tcp", classSockets, costSocket},
		explainKindKIND_WAKE:        {"wake", classSockets, costSocket},
		explainKindKIND_TRANSMIT:    {"transmit", classDevices, costPacket},
		explainKindKIND_QUEUE:       {"queue", classDevices, costPacket},
		explainKindKIND_RECEIVE:     {"receive", classDevices, costPacket},
		explainKindKIND_ROUTE:       {"route", classRouting, costSoftirq},
		explainKindKIND_HOOK:        {"hook", classNetfilter, costPacket},
		explainKindKIND_HOOK_END:    {"", classNetfilter, costPacket},
		explainKindKIND_PROGRAM:     {"program", classPrograms, costPacket},
		explainKindKIND_PROGRAM_END: {"", classPrograms, costPacket},
		explainKindKIND_RAISE:       {"raise", classSoftirqs, costSoftirq},
		explainKindKIND_SOFTIRQ:     {"softirq", classSoftirqs, costSoftirq},
		explainKindKIND_SOFTIRQ_END: {"softirq end", classSoftirqs, costSoftirq},
		explainKindKIND_RUN:         {"run", classThreads, costSocket},
	}
}

// String returns the step in words, without its place.
func (s Step) String() string {
	switch s.Kind {
	case "send":
		return s.Name + " sends"
	case "sent":
		return s.Name + " has sent"
	case "read":
		return s.Name + " has read"
	case "wake":
		return s.Name + " is woken"
	case "tcp":
		return "TCP receives from " + s.Device
	case "transmit":
		return s.Device + " transmits"
	case "queue":
		return s.Device + " queues for NET_RX"
	case "receive":
		return s.Device + " receives"
	case "route":
		return "route look-up"
	case "hook":
		return "netfilter " + s.Name
	case "program":
		if s.Redirects {
			return "BPF program " + s.Name + " at " + s.Device + " redirects"
		}
		return "BPF program " + s.Name + " at " + s.Device
	case "raise":
		return "softirq " + s.Name + " is raised"
	case "softirq":
		return "softirq " + s.Name
	case "softirq end":
		return "softirq " + s.Name + " ends"
	}
	return s.Name + " runs"
}
