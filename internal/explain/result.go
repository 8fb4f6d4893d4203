// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"mustang/internal/report"
	"mustang/internal/result"
)

// Schema is the version of [Explanation] and [Comparison] as JSON.
const Schema = 1

// Clocks of an [Explanation]: the unit of its figures.
const (
	ClockTime         = "ns"
	ClockInstructions = "instructions"
)

// Explanation is the path of a row's transactions, as measured. Figures are in nanoseconds, or instructions
// depending on Clock, of one transaction.
type Explanation struct {
	Schema int    `json:"schema"`
	Suite  string `json:"suite"`
	Row    string `json:"row"`
	Clock  string `json:"clock"`
	Kernel string `json:"kernel"`
	// Transactions is the number of traced transactions, and Alike the number of transactions that took Steps. The
	// others met a timer, an ARP packet or other work of the machine.
	Transactions int           `json:"transactions"`
	Alike        int           `json:"alike"`
	Steps        []result.Step `json:"steps"` // in the order in which they begin
	Sum          float64       `json:"sum"`
	// Untraced is the median transaction without tracing, and Traced with it, as the client sees them.
	Untraced float64   `json:"untraced"`
	Traced   float64   `json:"traced"`
	Rounds   []float64 `json:"rounds"` // medians of the runs without tracing, in their order
	// Events is the number of events of a transaction. EventCosts are the costs of recording an event of a "packet",
	// "socket" or "softirq", which are subtracted from the steps. "spread" is the slowdown of the code around it.
	Events     int                `json:"events"`
	EventCosts map[string]float64 `json:"event_costs"`
	Counters   Counters           `json:"counters"` // which the steps must agree with
	// Omitted are classes of steps whose order varied between transactions. Their time is in the steps before them.
	Omitted []string `json:"omitted,omitempty"`
}

// Counters are the kernel's own counters for a transaction, in a run without tracing: the mean of all transactions.
type Counters struct {
	Devices  []DeviceCounter  `json:"devices"` // with packets, by place and name
	Programs []ProgramCounter `json:"programs,omitempty"`
	Softirqs float64          `json:"softirqs"` // NET_RX and NET_TX of the whole machine
}

// DeviceCounter has the packets of a device in a transaction.
type DeviceCounter struct {
	Place       string  `json:"place"`
	Device      string  `json:"device"`
	Transmitted float64 `json:"transmitted"`
	Received    float64 `json:"received"`
}

// ProgramCounter has the runs of a BPF program in a transaction, at all its devices.
type ProgramCounter struct {
	Name string  `json:"name"`
	Runs float64 `json:"runs"`
	Mean float64 `json:"mean"` // time of one run, as the kernel's statistics have it
}

// Sorts of probes, whose cost differs.
const (
	costPacket  = "packet"
	costSocket  = "socket"
	costSoftirq = "softirq"
	costSpread  = "spread"
)

// costKinds are the sorts of probes whose events are recorded twice.
var costKinds = map[explainKind]string{
	explainKindKIND_TRANSMIT: costPacket, explainKindKIND_TCP: costSocket, explainKindKIND_SOFTIRQ: costSoftirq,
}

// kinds has the name, the class and the sort of probe of each kind of event.
var kinds = map[explainKind]struct{ name, class, cost string }{
	explainKindKIND_SEND:        {"send", report.Sockets, costSocket},
	explainKindKIND_SENT:        {"sent", report.Threads, costSocket},
	explainKindKIND_READ:        {"read", report.Threads, costSocket},
	explainKindKIND_TCP:         {"tcp", report.Sockets, costSocket},
	explainKindKIND_WAKE:        {"wake", report.Sockets, costSocket},
	explainKindKIND_TRANSMIT:    {"transmit", report.Devices, costPacket},
	explainKindKIND_QUEUE:       {"queue", report.Devices, costPacket},
	explainKindKIND_RECEIVE:     {"receive", report.Devices, costPacket},
	explainKindKIND_ROUTE:       {"route", report.Routing, costSoftirq},
	explainKindKIND_HOOK:        {"hook", report.Netfilter, costPacket},
	explainKindKIND_HOOK_END:    {"", report.Netfilter, costPacket},
	explainKindKIND_PROGRAM:     {"program", report.Programs, costPacket},
	explainKindKIND_PROGRAM_END: {"", report.Programs, costPacket},
	explainKindKIND_RAISE:       {"raise", report.Softirqs, costSoftirq},
	explainKindKIND_SOFTIRQ:     {"softirq", report.Softirqs, costSoftirq},
	explainKindKIND_SOFTIRQ_END: {"softirq end", report.Softirqs, costSoftirq},
	explainKindKIND_RUN:         {"run", report.Threads, costSocket},
}

// WriteText writes an explanation as text: the steps of each direction, the sum of each class, and what tracing cost.
func (e Explanation) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s: request/response over TCP, %s in each step (mean of the middle half of %d alike "+
		"transactions of %d)\n", e.Suite, e.Row, e.Clock, e.Alike, e.Transactions)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, direction := range []string{result.Request, result.Reply} {
		fmt.Fprintf(tab, "\n%s\t\t\n", direction)
		for _, s := range e.Steps {
			if s.Direction == direction {
				fmt.Fprintf(tab, "%s\t%s\t  %s\n", s.Place, report.StepFigure(s), s)
			}
		}
	}
	fmt.Fprintf(tab, "\nboth\t\t\n")
	for _, t := range report.Totals(e.Steps) {
		if t != (report.Total{Class: t.Class}) {
			fmt.Fprintf(tab, "\t%s\t  %s\n", figure(t.Sum), t)
		}
	}
	tab.Flush() // to a buffer
	fmt.Fprintf(&b, "\nSum %s. A transaction takes %s without tracing, and %s with its %d events (%+.0f %%).\n",
		figure(e.Sum), figure(e.Untraced), figure(e.Traced), e.Events, 100*(e.Traced/e.Untraced-1))
	for _, note := range e.notes() {
		fmt.Fprintln(&b, note)
	}
	_, err := b.WriteTo(w)
	return err
}

func figure(v float64) string { return report.Number(v, 0) }

func (e Explanation) notes() (notes []string) {
	if len(e.Omitted) > 0 {
		notes = append(notes, fmt.Sprintf("Not shown, since their order varied: %s.", strings.Join(e.Omitted, ", ")))
	}
	for _, p := range e.Counters.Programs {
		notes = append(notes, fmt.Sprintf("BPF program %s runs for %s %s, by the kernel's statistics.", p.Name,
			figure(p.Mean), e.Clock))
	}
	return notes
}

// WriteSVG draws an explanation as an SVG document, see [report.Draw].
func (e Explanation) WriteSVG(w io.Writer) error { return report.Draw(w, e.path()) }

// path returns the path as drawn; the notes list the omitted classes.
func (e Explanation) path() report.Path {
	t := e.Result()
	t.Omitted = nil
	return report.NewPath(e.Suite+" "+e.Row, t, e.Clock)
}

// Result returns an explanation in nanoseconds as a result file has it.
func (e Explanation) Result() result.Trace {
	return result.Trace{
		Suite: e.Suite, ID: e.Row, Transactions: e.Transactions, Alike: e.Alike, UntracedNS: e.Untraced, Steps: e.Steps,
		Omitted: e.Omitted,
	}
}
