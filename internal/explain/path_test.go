// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mustang/internal/report"
	"mustang/internal/testkit"
)

// Numbers of the places in made-up events.
const (
	inPodA = 1
	inPodB = 2
	inHost = 3
)

func madeUpNames() names {
	return names{
		server: "pod-a", places: []string{"pod-a", "pod-b", "host"},
		devices:  map[device]string{{inPodA, 2}: "eth0", {inPodB, 2}: "eth0", {inHost, 5}: "veth-b", {inHost, 6}: "veth-a"},
		programs: []string{"from_pod"},
	}
}

// at is an event and the time until the next one.
type at struct {
	event explainEvent
	time  uint64
}

// Processes in made-up events.
const (
	server = 7
	client = 8
	proxy  = 1 << 23 // none has this number
)

const roleClient = 1

func event(kind explainKind, place uint8, subject uint32, detail uint8) explainEvent {
	e := explainEvent{Kind: uint8(kind), Place: place, Subject: subject, Detail: detail}
	if kinds[kind].cost == costPacket || kind == explainKindKIND_TCP {
		e.Head = 0xabc0
	}
	if kinds[kind].cost == costSocket && kind != explainKindKIND_RUN {
		e.Socket = uint32(place)<<8 | uint32(detail)
	}
	return e
}

// routed is a transaction through a host with a netfilter hook and a BPF program, 50 ns of
// each step being the cost of its event.
func routed() []at {
	return []at{
		{event(explainKindKIND_SEND, inPodB, client, roleClient), 1050},
		{event(explainKindKIND_TRANSMIT, inPodB, 2, 0), 150},
		{event(explainKindKIND_SOFTIRQ, 0, 0, 3), 250},
		{event(explainKindKIND_RECEIVE, inHost, 5, 0), 350},
		{event(explainKindKIND_HOOK, inHost, 5, 2), 450},
		{event(explainKindKIND_HOOK_END, inHost, 5, 2), 80}, // of the reception
		{event(explainKindKIND_ROUTE, 0, 0, 0), 550},
		{event(explainKindKIND_PROGRAM, inHost, 6, 0), 650}, // redirects
		{event(explainKindKIND_TCP, inPodA, 2, roleServer), 750},
		{event(explainKindKIND_SEND, inPodA, server, roleServer), 850},
		{event(explainKindKIND_TCP, inPodB, 2, roleClient), 950},
		{event(explainKindKIND_READ, inPodB, client, roleClient), 1050},
	}
}

func record(transactions int, path []at) (events []explainEvent) {
	now := uint64(1000)
	for range transactions {
		for _, a := range path {
			a.event.Time = now
			events = append(events, a.event)
			now += a.time
		}
	}
	return events
}

// doubled returns events. Some are recorded twice, 50 ns apart.
func doubled() (events []explainEvent) {
	for i, e := range record(50, routed()) {
		e.Time += uint64(1000 * i)
		events = append(events, e)
		if _, twice := costKinds[explainKind(e.Kind)]; twice {
			e.Time += 50
			events = append(events, e)
		}
	}
	return events
}

// madeUp returns the explanation of transactions that took 100 ns longer with tracing than the cost of their events.
func madeUp(t *testing.T, events []at) Explanation {
	t.Helper()
	known := 50 * float64(len(events))
	rec := recording{
		untraced: []float64{6000, 6100, 6050}, traced: []float64{6000 + known, 6100 + known, 6050 + known},
		events: [][]explainEvent{record(settle+50, events)}, doubled: doubled(),
	}
	p, err := newPath(rec, madeUpNames())
	testkit.Succeed(t, err)
	e := p.explanation(poolCosts([]path{p}))
	e.Suite, e.Row, e.Clock = "made-up", "routed", ClockTime
	return e
}

func TestStepsHaveTheirTimeWithoutTheCostOfEvents(t *testing.T) {
	e := madeUp(t, routed())
	var got []string
	for _, s := range e.Steps {
		got = append(got, strings.Join([]string{s.Direction, s.Place, s.String(), figure(s.Time)}, "|"))
	}
	want := []string{
		"request|pod-b|client sends|1,000", "request|pod-b|eth0 transmits|100", "request|pod-b|softirq NET_RX|200",
		"request|host|veth-b receives|330", "request|host|netfilter forward|400", "request|host|route look-up|500",
		"request|host|BPF program from_pod at veth-a redirects|600", "request|pod-a|TCP receives from eth0|700",
		"reply|pod-a|server sends|800", "reply|pod-b|TCP receives from eth0|900", "reply|pod-b|client has read|1,000",
	}
	testkit.Check(t, slices.Equal(got, want), "steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	testkit.Check(t, e.Events == 12 && e.Alike == e.Transactions && e.EventCosts[costPacket] == 50,
		"%d events, %d of %d alike, costs %v", e.Events, e.Alike, e.Transactions, e.EventCosts)
}

// TestPathGoesThroughAProxy has a program that carries requests on another connection, from the client's own place.
func TestPathGoesThroughAProxy(t *testing.T) {
	onward := func(kind explainKind, process uint32) explainEvent {
		e := event(kind, inPodB, process, roleClient)
		e.Socket = 99
		return e
	}
	e := madeUp(t, []at{
		{event(explainKindKIND_SEND, inPodB, client, roleClient), 1000},
		{event(explainKindKIND_TCP, inPodB, 1, roleServer), 100},
		{event(explainKindKIND_WAKE, inPodB, 0, roleServer), 5000},
		{event(explainKindKIND_READ, inPodB, proxy, roleServer), 100},
		{onward(explainKindKIND_SEND, proxy), 1000},
		{event(explainKindKIND_WAKE, inPodA, 0, roleServer), 5000},
		{event(explainKindKIND_SEND, inPodA, server, roleServer), 1000},
		{onward(explainKindKIND_WAKE, 0), 5000},
		{event(explainKindKIND_SEND, inPodB, proxy, roleServer), 1000},
		{event(explainKindKIND_WAKE, inPodB, 0, roleClient), 5000},
	})
	var got []string
	for _, s := range e.Steps {
		if s.Kind != "tcp" {
			got = append(got, s.Direction+": "+s.String())
		}
	}
	want := []string{
		"request: client sends", "request: process 8388608 is woken", "request: process 8388608 has read",
		"request: process 8388608 sends", "request: server is woken",
		"reply: server sends", "reply: process 8388608 is woken", "reply: process 8388608 sends", "reply: client is woken",
	}
	testkit.Check(t, slices.Equal(got, want), "steps:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func TestForeignEventsMakeNoPath(t *testing.T) {
	events := record(settle+100, routed())
	arp := event(explainKindKIND_RECEIVE, inHost, 5, 0)
	for i := (settle + 10) * len(routed()); i < len(events); i += 7 * len(routed()) {
		arp.Time = events[i].Time + 10
		events = append(events, arp)
	}
	// Another CPU has softirqs of its own.
	for i := range 5000 {
		other := event(explainKindKIND_SOFTIRQ, 0, 0, 3)
		other.Cpu, other.Time = 1, uint64(1000+i*100)
		events = append(events, other)
	}
	all, alike, omitted := recording{events: [][]explainEvent{events}}.alike()
	if len(alike) >= len(all) || len(alike) < len(all)*3/4 || len(omitted) > 0 || len(alike[0]) != len(routed())+1 {
		t.Errorf("%d of %d alike, without %v, of %d events", len(alike), len(all), omitted, len(alike[0]))
	}
}

func TestVaryingSoftirqsAreLeftOut(t *testing.T) {
	var events []explainEvent
	for i, e := range record(settle+100, routed()) {
		e.Time *= 2
		events = append(events, e)
		for n := range i / len(routed()) % 5 {
			if explainKind(e.Kind) == explainKindKIND_TRANSMIT {
				raised := event(explainKindKIND_RAISE, 0, 0, 3)
				raised.Time = e.Time + 1 + uint64(n)
				events = append(events, raised)
			}
		}
	}
	all, alike, omitted := recording{events: [][]explainEvent{events}}.alike()
	testkit.Check(t, len(alike) == len(all) && slices.Equal(omitted, []string{report.Softirqs}),
		"%d of %d alike without %v", len(alike), len(all), omitted)
}

func TestTooFewAlikeIsAnError(t *testing.T) {
	rec := recording{events: [][]explainEvent{record(settle+10, routed())}}
	_, err := newPath(rec, madeUpNames())
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "9 of 9"), "error %v", err)
	_, err = newPath(recording{}, madeUpNames())
	testkit.Check(t, err != nil, "no events make a path")
}

func TestRowOnTwoCPUsRunsOnTwo(t *testing.T) {
	two := Options{Suite: "two-cpus", Row: "veth/pod-ip@2cpus", Count: MinCount}
	p, err := two.path()
	testkit.Succeed(t, err)
	if cpus, err := newRun(two, 0, p, thorough).cpus(); (runtime.NumCPU() > 1) != (err == nil) || err == nil &&
		cpus.Client == cpus.Server {
		t.Errorf("%+v, %v", cpus, err)
	}
	two.Instructions = true
	err = two.Validate()
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "two CPUs"), "counted on two CPUs: %v", err)
}

func TestComparisonTellsWhatIsSaved(t *testing.T) {
	short := slices.Delete(routed(), 4, 7) // the hook and the look-up
	c := Compare(madeUp(t, short), madeUp(t, routed()))
	const want = "Without tracing, a transaction of routed takes 0 ns less, in 3 of 3 pairs of runs."
	only := 0
	for _, p := range c.Steps {
		if p.Row == nil || p.Against == nil {
			only++
		}
	}
	testkit.Check(t, only == 2 && len(c.Steps) == 11, "%d pairs, %d of them of one row", len(c.Steps), only)
	var text bytes.Buffer
	if err := c.WriteText(&text); err != nil || !strings.Contains(text.String(), want) ||
		!strings.Contains(text.String(), "routing (-1)") {
		t.Errorf("%v:\n%s", err, text.String())
	}
}

// TestStepsThatVaryAddUp has one long step of three in each transaction, not always the same: all three medians are
// short.
func TestStepsThatVaryAddUp(t *testing.T) {
	var events []explainEvent
	now := uint64(0)
	for i := range settle + 101 {
		for at, e := range routed() {
			e.event.Time = now
			events = append(events, e.event)
			now += e.time
			if at == i%3 {
				now += 1000
			}
		}
	}
	rec := recording{untraced: []float64{1}, traced: []float64{1}, events: [][]explainEvent{events}, doubled: doubled()}
	p, err := newPath(rec, madeUpNames())
	testkit.Succeed(t, err)
	e := p.explanation(map[string]float64{})
	var durations []float64
	for _, alike := range p.alike {
		durations = append(durations, float64(alike[len(alike)-1].Time-alike[0].Time))
	}
	total := median(durations)
	testkit.Check(t, !(math.Abs(e.Sum-total) > 5), "sum %v of transactions that take %v", e.Sum, total)
}

// TestEventsThatAreLeftOutCost has transactions with most events left out: tracing takes far longer than the cost of
// the others.
func TestEventsThatAreLeftOutCost(t *testing.T) {
	alike := transactions(record(20, routed()))
	p := path{
		recording: recording{untraced: []float64{6000}, traced: []float64{9000}},
		alike:     alike, costs: map[string]float64{costPacket: 50, costSocket: 50, costSoftirq: 50},
	}
	for events, want := range map[float64]float64{12: 0, 48: 200} { // 12 events of 50 ns, and 2,400 ns beyond
		p.events = events
		got := poolCosts([]path{p})[costSpread]
		testkit.Check(t, got == want, "%v events: each of 12 takes %v ns more, want %v", events, got, want)
	}
}

// TestPrintedFiguresAddUp has steps of fractions of a nanosecond, and one that is shorter
// than the cost of recording it.
func TestPrintedFiguresAddUp(t *testing.T) {
	events := routed()
	events[1].time = 20 // less than its event's cost
	e := madeUp(t, events)
	p := path{recording: recording{untraced: []float64{1}, traced: []float64{1}}, names: madeUpNames()}
	p.all = transactions(record(20, events))
	p.alike = p.all
	fractions := p.explanation(map[string]float64{costPacket: 50.4, costSocket: 50.3, costSoftirq: 50.4})
	var sum float64
	for _, s := range fractions.Steps {
		sum += s.Time
		testkit.Check(t, s.Time == math.Trunc(s.Time), "%s takes %v", &s, s.Time)
	}
	testkit.Check(t, sum == fractions.Sum, "steps of %v, sum %v", sum, fractions.Sum)
	got := report.StepFigure(e.Steps[1])
	testkit.Check(t, got == "<50", "a step that is shorter than its cost takes %s", got)
	var line strings.Builder
	Pair{&e.Steps[1], &e.Steps[0]}.write(&line)
	if got := strings.Split(line.String(), "\t"); got[2] != "" {
		t.Errorf("its difference is %q", got[2])
	}
}

func TestDrawingIsXMLWithAllSteps(t *testing.T) {
	e := madeUp(t, routed())
	e.Row = "a<b>&"
	var svg bytes.Buffer
	testkit.Succeed(t, (Comparison{Row: e, Against: e}).WriteSVG(&svg))
	titles := 0
	for decoder := xml.NewDecoder(&svg); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Succeed(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "title" {
			titles++
		}
	}
	classes := map[string]bool{}
	for _, s := range e.Steps {
		classes[s.Class] = true
	}
	want := 2 * (len(e.Steps) + len(classes))
	testkit.Check(t, titles == want, "%d boxes, want %d", titles, want)
}
