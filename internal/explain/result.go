// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

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

// WriteText writes an explanation as text: the steps of each direction, the sum of each
// class, what tracing cost, and what the steps don't tell.
func (e Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: request/response over TCP, %s in each step (mean of the middle half of %d alike "+
		"transactions of %d)\n",
		e.Suite, e.Row, e.Clock, e.Alike, e.Transactions)
	tab := tabwriter.NewWriter(&b, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, direction := range []string{Request, Reply} {
		fmt.Fprintf(tab, "\n%s\t\t\n", direction)
		for _, s := range e.Steps {
			if s.Direction == direction {
				fmt.Fprintf(tab, "%s\t%s\t  %s\n", s.Place, steps.StepFigure(s), s)
			}
		}
	}
	fmt.Fprintf(tab, "\nboth\t\t\n")
	for _, c := range steps.Totals(e.Steps) {
		fmt.Fprintf(tab, "\t%s\t  %s\n", steps.Figure(c.Sum), c)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nSum %s. A transaction takes %s without tracing, and %s with its %d events (%+.0f %%).\n",
		steps.Figure(e.Sum), steps.Figure(e.Untraced), steps.Figure(e.Traced), e.Events, 100*(e.Traced/e.Untraced-1))
	for _, note := range e.notes() {
		fmt.Fprintln(&b, note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notes returns sentences on what the steps don't tell.
func (e Explanation) notes() (notes []string) {
	if gap := e.Untraced - e.Sum; math.Abs(gap) > e.noise() {
		notes = append(notes, e.why(gap))
	}
	if len(e.Omitted) > 0 {
		notes = append(notes, fmt.Sprintf("Not shown, since their order varied: %s.", strings.Join(e.Omitted, ", ")))
	}
	for _, p := range e.Counters.Programs {
		notes = append(notes, fmt.Sprintf("BPF program %s runs for %s %s, by the kernel's statistics.", p.Name,
			steps.Figure(p.Mean), e.Clock))
	}
	if len(e.Missing) > 0 {
		notes = append(notes, fmt.Sprintf("This kernel lacks: %s.", strings.Join(e.Missing, ", ")))
	}
	return notes
}

// noise returns what the sum and the transaction without tracing may differ by: what half
// of the runs without tracing did, and no less than a twentieth of the transaction.
func (e Explanation) noise() float64 {
	runs := slices.Sorted(slices.Values(e.Rounds))
	return max(e.Untraced/20, quantile(runs, 0.75)-quantile(runs, 0.25))
}

// why tells the time that is in no step, or in steps only, and where most of it comes from.
func (e Explanation) why(gap float64) string {
	text, sign := fmt.Sprintf("%s %s of a transaction are in no step", steps.Figure(gap), e.Clock), 1.0
	if gap < 0 {
		text, sign = fmt.Sprintf("The steps take %s %s longer than a transaction", steps.Figure(-gap), e.Clock), -1
	}
	if others := sign * e.Others; others > math.Abs(gap)-others {
		return text + ": transactions that took other paths differ from these."
	}
	return text + ": other work disturbed some runs, or tracing changed how long threads wait for each other. Repeat " +
		"it on an idle machine."
}

// WriteSVG draws an explanation as an SVG document, see [steps.Draw].
func (e Explanation) WriteSVG(w io.Writer) error { return steps.Draw(w, e.drawing()) }

// WriteSVG draws both rows side by side.
func (c Comparison) WriteSVG(w io.Writer) error {
	return steps.Draw(w, c.Row.drawing(), c.Against.drawing())
}

// drawing returns what is drawn.
func (e Explanation) drawing() steps.Path {
	return steps.Path{Title: e.Suite + " " + e.Row, Note: steps.Note(e.Untraced, e.Clock, e.Alike), Clock: e.Clock,
		Steps: e.Steps}
}

// Result returns an explanation in nanoseconds as a result file has it.
func (e Explanation) Result() result.Trace {
	return result.Trace{
		Suite: e.Suite, ID: e.Row, Transactions: e.Transactions, Alike: e.Alike, UntracedNS: e.Untraced, Steps: e.Steps,
		Omitted: e.Omitted,
	}
}
