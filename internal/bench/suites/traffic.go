// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"mustang/internal/bench/engine"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/suggest"
)

// Values of [Traffic.Direction].
const (
	DirectionForward = "forward"
	DirectionReverse = "reverse"
	DirectionBoth    = "both"
)

const underLoad = 0.5

// Traffic replaces the suites' own workloads on their paths.
type Traffic struct {
	Workloads         []string // names of [load.Workloads]; none: the suites' own
	Flows             int      // connections of streams; 0 means the workloads' own
	Request, Response int      // sizes; 0 means the usual ones
	Direction         string   // of TCP streams; empty means forward
	UnderLoad         bool     // adds the latency of TCP request/response at a rate
	Rate              int      // in requests per second; 0 means half of each row's own
}

// Set reports whether the traffic is not the usual one.
func (t Traffic) Set() bool { return !reflect.DeepEqual(t, Traffic{}) }

// Apply returns suites with the traffic on their paths. Suites that call plugins stay as they are, but not alone.
func (t Traffic) Apply(all []Suite) ([]Suite, error) {
	switch {
	case !t.Set():
		return all, nil
	case t.Rate != 0 && !t.UnderLoad:
		return nil, errors.New("--rate needs --latency-under-load")
	case !slices.ContainsFunc(all, func(s Suite) bool { return !s.CallsPlugins() }):
		return nil, fmt.Errorf(
			"suite %s carries no traffic: it takes no --workload, --flows, sizes, --direction and --latency-under-load",
			all[0].Name)
	}
	out := slices.Clone(all)
	for i, s := range out {
		if s.CallsPlugins() {
			continue
		}
		var err error
		if out[i].Workloads, err = t.workloads(s.Workloads); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t Traffic) workloads(own []Workload) ([]Workload, error) {
	if len(t.Workloads) > 0 {
		own = nil
		for _, name := range t.Workloads {
			own = append(own, Workload{Name: name, Flows: 1})
		}
	}
	var out []Workload
	add := func(w Workload) {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	for _, w := range own {
		if w.Name == load.UDPStream {
			w = udpStreams(w.Flows)
		}
		if t.Flows != 0 && strings.HasSuffix(w.Name, "_stream") {
			w.Flows = t.Flows
		}
		if strings.HasSuffix(w.Name, "rr") {
			w.Setup.RequestBytes, w.Setup.ResponseBytes = t.Request, t.Response
		}
		if w.Name != load.TCPStream || t.Direction != DirectionReverse {
			add(w)
		}
		if w.Name == load.TCPStream && (t.Direction == DirectionReverse || t.Direction == DirectionBoth) {
			w.Setup.Reverse = true
			add(w)
		}
	}
	if t.UnderLoad {
		w := Workload{Name: load.TCPRR, Flows: 1, Setup: result.Setup{RequestBytes: t.Request, ResponseBytes: t.Response,
			Rate: t.Rate}}
		if t.Rate == 0 {
			w.Setup.LoadShare = underLoad
		}
		add(w)
	}
	return out, t.check(out)
}

func (t Traffic) check(workloads []Workload) error {
	for _, name := range t.Workloads {
		if known := load.Workloads(); !slices.Contains(known, name) {
			return fmt.Errorf("--workload %q: want %s%s", name, strings.Join(known, ", "), suggest.Text(name, known))
		}
	}
	some := func(fits func(Workload) bool) bool { return slices.ContainsFunc(workloads, fits) }
	switch {
	case !slices.Contains([]string{"", DirectionForward, DirectionReverse, DirectionBoth}, t.Direction):
		return fmt.Errorf("--direction %q: want %s, %s or %s", t.Direction, DirectionForward, DirectionReverse, DirectionBoth)
	case t.Flows < 0 || t.Flows > load.MaxFlows:
		return fmt.Errorf("-P, --flows %d: want 1 to %d", t.Flows, load.MaxFlows)
	case t.Rate < 0 || t.Rate > load.MaxPace:
		return fmt.Errorf("--rate %d: want 1 to %d requests per second", t.Rate, load.MaxPace)
	case t.Flows != 0 && !some(func(w Workload) bool { return strings.HasSuffix(w.Name, "_stream") }):
		return fmt.Errorf("-P, --flows %d: only streams have several, and none is selected", t.Flows)
	case t.Direction != "" && !some(func(w Workload) bool { return w.Name == load.TCPStream }):
		return fmt.Errorf("--direction %q: only a %s has one, and none is selected", t.Direction, load.TCPStream)
	case (t.Request != 0 || t.Response != 0) && !some(func(w Workload) bool { return strings.HasSuffix(w.Name, "rr") }):
		return errors.New("--request-size, --response-size: no selected workload has requests")
	}
	for _, w := range workloads {
		if w.OfTables() {
			continue
		}
		whole := w.Spec(Path{}.connectTo(localhost))
		for _, part := range []struct {
			flag string
			err  error
		}{
			{"--request-size: ", load.Spec{Workload: w.Name, Request: whole.Request}.CheckSizes()},
			{"--response-size: ", load.Spec{Workload: w.Name, Response: whole.Response}.CheckSizes()},
			{"", whole.Validate()},
		} {
			if part.err != nil {
				return errors.New(part.flag + strings.TrimPrefix(part.err.Error(), "load: "))
			}
		}
	}
	return nil
}

// Beside returns suites in which each path is followed by itself under each engine, with comparisons to the path.
// The workloads are the workloads that an engine carries. Suites without such a workload are left out. Beside
// returns an error if no suite remains.
func Beside(all []Suite, engines []engine.Engine) ([]Suite, error) {
	var out []Suite
	var names []string
	for _, e := range engines {
		names = append(names, e.Name)
	}
	list := strings.Join(names, ", ")
	for _, s := range all {
		if s = s.beside(engines); len(s.Workloads) > 0 {
			s.Report.Question = "Do the native engine and " + list + " agree?"
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: cannot run any workload of suite %s", list, all[0].Name)
	}
	return out, nil
}

func (s Suite) beside(engines []engine.Engine) Suite {
	out := Suite{Name: s.Name, Doc: s.Doc, Report: result.Suite{Answer: []string{result.AnswerStatements}}}
	for _, w := range s.Workloads {
		carries := func(e engine.Engine) bool { return e.Runs(w.Name, w.Flows) }
		if !s.CallsPlugins() && slices.ContainsFunc(engines, carries) {
			out.Workloads = append(out.Workloads, w)
		}
	}
	against := make([]result.Statement, len(engines))
	for i, e := range engines {
		against[i] = result.Statement{Caption: e.Name + " against native", Subject: "by " + e.Name,
			Object: "by the native engine"}
	}
	for _, p := range s.Paths {
		if p.Repeats != "" {
			continue
		}
		out.add(p)
		for i, e := range engines {
			by := p
			by.ID, by.Label, by.Engine = p.ID+"/"+e.Name, p.ID+"/"+e.Name, &e
			out.add(by)
			out.Pairs = append(out.Pairs, Pair{Name: p.ID + ": " + e.Name + " / native", Numerator: by.ID, Denominator: p.ID})
			against[i].Pairs = append(against[i].Pairs, pairOf(by.ID, p.ID, p.ID))
		}
	}
	out.Report.Statements = against
	return out
}

// BesideEngines reports whether paths are measured by further engines.
func (s Suite) BesideEngines() bool {
	return slices.ContainsFunc(s.Paths, func(p Path) bool { return p.Engine != nil })
}
