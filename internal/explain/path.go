// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"mustang/internal/report"
	"mustang/internal/result"
)

type recording struct {
	untraced, traced []float64        // median transactions of runs; some untraced ones precede each traced one
	events           [][]explainEvent // of the traced runs
	doubled          []explainEvent   // of a run with some probes attached twice
}

// device identifies a device by the number of its place and its index.
type device struct {
	place uint8
	index uint32
}

type names struct {
	server   string   // place of the server
	places   []string // of the numbers from 1
	devices  map[device]string
	programs []string
}

func (n names) place(e explainEvent) string {
	if e.Place == 0 {
		return ""
	}
	return n.places[e.Place-1]
}

// transaction is the events of one transaction. The last one is the start of the next.
type transaction []explainEvent

const minAlike = 20

type path struct {
	recording
	names   names
	all     []transaction
	alike   []transaction
	omitted []string
	events  float64 // of a transaction, including the omitted ones
	costs   map[string]float64
}

func newPath(rec recording, n names) (path, error) {
	all, alike, omitted := rec.alike()
	if len(alike) < minAlike {
		return path{}, fmt.Errorf("only %d of %d transactions took the same path", len(alike), len(all))
	}
	recorded := 0
	for _, events := range rec.events {
		recorded += len(onFlow(events))
	}
	return path{
		recording: rec, names: n, all: all, alike: alike, omitted: omitted, costs: eventCosts(rec.doubled),
		events: float64(recorded) / float64(len(all)+settle*len(rec.events)),
	}, nil
}

// explanation returns the steps of the path, minus the costs of recording. Figures are whole, so printed sums match.
func (p path) explanation(costs map[string]float64) Explanation {
	steps, owner := p.names.steps(p.alike[0])
	e := Explanation{
		Transactions: len(p.all), Alike: len(p.alike), Steps: steps, Events: len(owner),
		Rounds: p.untraced, Untraced: median(p.untraced), Traced: median(p.traced), EventCosts: costs, Omitted: p.omitted,
	}
	for i, at := range owner {
		steps[at].Cost += costBetween(costs, p.alike[0][i], p.alike[0][i+1])
	}
	duration := func(t transaction) uint64 { return t[len(t)-1].Time - t[0].Time }
	middle := slices.SortedFunc(slices.Values(p.alike), func(a, b transaction) int {
		return cmp.Compare(duration(a), duration(b))
	})
	middle = middle[len(middle)/4 : len(middle)-len(middle)/4] // means over the half in the middle add up
	samples := make([][]float64, len(steps))
	for _, t := range middle {
		times := make([]float64, len(steps))
		for i, at := range owner {
			times[at] += float64(t[i+1].Time - t[i].Time)
		}
		for at, time := range times {
			samples[at] = append(samples[at], time)
			steps[at].Time += time / float64(len(middle))
		}
	}
	for at, list := range samples {
		slices.Sort(list)
		s := &steps[at]
		net := func(time float64) float64 { return math.Round(max(0, time-s.Cost)) }
		s.Time, s.Low, s.High = net(s.Time), net(quantile(list, 0.25)), net(quantile(list, 0.75))
		e.Sum += s.Time
	}
	if len(p.omitted) > 0 {
		e.Events = int(math.Round(p.events))
	}
	return e
}

// alike returns all transactions and the ones of the most common path. It omits classes whose order varies, if need be.
func (rec recording) alike() (all, alike []transaction, omitted []string) {
	varying := []string{"", report.Softirqs, report.Threads}
	for i := range varying {
		omitted, all = varying[1:i+1], nil
		for _, events := range rec.events {
			kept := slices.DeleteFunc(onFlow(events), func(e explainEvent) bool {
				return slices.Contains(omitted, kinds[e.kind()].class)
			})
			if found := transactions(kept); len(found) > settle {
				all = append(all, found[settle:]...)
			}
		}
		if alike = mostCommon(all); 2*len(alike) >= len(all) {
			break
		}
	}
	return all, alike, omitted
}

func quantile(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }
func median(samples []float64) float64             { return quantile(slices.Sorted(slices.Values(samples)), 0.5) }

func eventCosts(doubled []explainEvent) map[string]float64 {
	times := map[string][]float64{}
	for i := 1; i < len(doubled); i++ {
		a, b := doubled[i-1], doubled[i]
		if sort, ok := costKinds[a.kind()]; ok && a.Cpu == b.Cpu && a.key() == b.key() && a.Head == b.Head {
			times[sort] = append(times[sort], float64(b.Time-a.Time))
		}
	}
	costs := map[string]float64{}
	for sort, list := range times {
		costs[sort] = median(list)
	}
	return costs
}

// poolCosts returns the costs of recording an event: the mean of all paths for each kind, and the "spread" by which
// tracing slows the code between events. The spread is the median of all rounds, and 0 if threads wait for each other.
func poolCosts(paths []path) map[string]float64 {
	costs := map[string]float64{}
	for _, sort := range costKinds {
		for _, p := range paths {
			costs[sort] += p.costs[sort] / float64(len(paths))
		}
	}
	var each []float64
	for _, p := range paths {
		t, known := p.alike[0], 0.0
		for i := range t[1:] {
			known += costBetween(costs, t[i], t[i+1])
		}
		perRound := len(p.untraced) / len(p.traced)
		for i := range p.traced {
			beyond := p.traced[i] - median(p.untraced[i*perRound:(i+1)*perRound]) - known
			if math.Abs(beyond) > known*max(1, 2*p.events/float64(len(t)-1)-1) { // twice the cost of all events
				beyond = 0
			}
			each = append(each, beyond/float64(len(t)-1))
		}
	}
	costs[costSpread] = median(each)
	return costs
}

// costBetween returns the cost of recording that lies between two events: half of each.
func costBetween(costs map[string]float64, a, b explainEvent) float64 {
	return (costs[kinds[a.kind()].cost]+costs[kinds[b.kind()].cost])/2 + costs[costSpread]
}

func onFlow(events []explainEvent) []explainEvent {
	packets, all := map[uint8]int{}, 0
	for _, e := range events {
		if e.Head != 0 {
			packets[e.Cpu]++
			all++
		}
	}
	events = slices.DeleteFunc(slices.Clone(events), func(e explainEvent) bool { return packets[e.Cpu]*20 < all })
	slices.SortStableFunc(events, func(a, b explainEvent) int { return cmp.Compare(a.Time, b.Time) })
	return events
}

func transactions(events []explainEvent) (all []transaction) {
	start := -1
	for i, e := range events {
		if e.kind() != explainKindKIND_SEND || start >= 0 && e.Socket != events[start].Socket {
			continue
		}
		if start >= 0 {
			all = append(all, events[start:i+1])
		}
		start = i
	}
	return all
}

func mostCommon(all []transaction) []transaction {
	groups := map[string][]transaction{}
	var most string
	for _, t := range all {
		var key strings.Builder
		for _, e := range t {
			fmt.Fprintf(&key, "%x ", e.key())
		}
		k := key.String()
		groups[k] = append(groups[k], t)
		if len(groups[k]) > len(groups[most]) {
			most = k
		}
	}
	return groups[most]
}

func (e explainEvent) kind() explainKind { return explainKind(e.Kind) }

func (e explainEvent) key() [4]uint32 {
	return [4]uint32{uint32(e.Kind), uint32(e.Place), uint32(e.Detail), e.Subject}
}

const roleServer = 2 // the role of a server's socket, as in explain.bpf.c

// steps returns the steps of a transaction, and for each event but the last the step that the time after it belongs to.
func (n names) steps(t transaction) (steps []result.Step, owner []int) {
	var outer []int // steps that are interrupted by a hook or a program
	direction, current := result.Request, 0
	ends, processes := n.ends(t)
	for _, e := range t[:len(t)-1] {
		switch e.kind() {
		case explainKindKIND_HOOK_END, explainKindKIND_PROGRAM_END:
			if last := len(outer) - 1; last >= 0 {
				steps[current].Redirects = false
				current, outer = outer[last], outer[:last]
			}
			owner = append(owner, current)
			continue
		case explainKindKIND_HOOK, explainKindKIND_PROGRAM:
			outer = append(outer, current)
		case explainKindKIND_SEND:
			if ends[e.Socket] == endServer {
				direction = result.Reply
			}
		}
		s := n.step(e)
		s.Direction = direction
		if s.Place == "" {
			s.Place = steps[current].Place
		}
		switch {
		case e.Socket != 0:
			s.Name = ends[e.Socket]
		case e.kind() == explainKindKIND_RUN:
			s.Name = cmp.Or(processes[e.Subject], processName(e.Subject))
		}
		s.Redirects = e.kind() == explainKindKIND_PROGRAM // until it ends
		current = len(steps)
		steps, owner = append(steps, s), append(owner, current)
	}
	return steps, owner
}

func (n names) step(e explainEvent) result.Step {
	info := kinds[e.kind()]
	s := result.Step{Kind: info.name, Class: info.class, Place: n.place(e)}
	switch e.kind() {
	case explainKindKIND_HOOK:
		s.Name = hookNames[e.Detail]
	case explainKindKIND_PROGRAM:
		s.Name = n.programs[e.Detail]
	case explainKindKIND_RAISE, explainKindKIND_SOFTIRQ, explainKindKIND_SOFTIRQ_END:
		s.Name = map[uint8]string{2: "NET_TX", 3: "NET_RX"}[e.Detail]
	}
	if e.Head != 0 {
		s.Device = n.devices[device{e.Place, e.Subject}]
	}
	return s
}

// Names of the ends of a flow.
const endClient, endServer = "client", "server"

// ends names the owners of a transaction's sockets, and their processes: client, server, or the program between them.
func (n names) ends(t transaction) (sockets, processes map[uint32]string) {
	sockets, processes = map[uint32]string{}, map[uint32]string{}
	for _, e := range t {
		switch k := e.kind(); {
		case k != explainKindKIND_SEND && k != explainKindKIND_SENT && k != explainKindKIND_READ:
			continue
		case e.Socket == t[0].Socket:
			processes[e.Subject] = endClient
		case e.Detail == roleServer && n.place(e) == n.server:
			processes[e.Subject] = endServer
		case processes[e.Subject] == "":
			processes[e.Subject] = processName(e.Subject)
		}
		sockets[e.Socket] = processes[e.Subject]
	}
	return sockets, processes
}

func processName(pid uint32) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf("process %d", pid)
	}
	return strings.TrimSpace(string(text))
}
