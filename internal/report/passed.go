// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"
)

// passage is what the packets of a way pass.
type passage struct {
	Way      string
	Class    string
	Softirqs string
	Devices  []string
	Hooks    []string
}

// passages are those of a set of the suite on latency, whose ways differ in them.
func (s *set) passages() []passage {
	if s.suite != suiteLatency {
		return nil
	}
	var out []passage
	for _, e := range s.measured() {
		p := passage{Way: e.connection, Class: class(e), Softirqs: none, Devices: e.passed(), Hooks: e.hooks()}
		if n := e.Evidence.SoftirqsPerUnit; n > 0 {
			p.Softirqs = number(n, fewDecimals(n))
		}
		out = append(out, p)
	}
	return out
}

// fewPackets is the share of the busiest device's packets below which a device did
// not carry the traffic, but saw an occasional packet of another kind.
const fewPackets = 0.1

// passed names the devices that carried the traffic, those of one place together.
func (e *entry) passed() []string {
	busiest := uint64(0)
	for _, d := range e.Evidence.Devices {
		busiest = max(busiest, d.RxPackets+d.TxPackets)
	}
	var places []string
	names := map[string][]string{}
	for _, d := range e.Evidence.Devices {
		if n := d.RxPackets + d.TxPackets; n == 0 || float64(n) < fewPackets*float64(busiest) {
			continue
		}
		place := clean(d.Host)
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
		names[place] = append(names[place], clean(d.Name))
	}
	var out []string
	for _, place := range places {
		out = append(out, strings.TrimPrefix(place+" ("+strings.Join(names[place], ", ")+")", " "))
	}
	return out
}

// Count says how many hooks there are.
func (p passage) Count() string {
	if len(p.Hooks) == 0 {
		return "none"
	}
	return count(len(p.Hooks), "hook")
}

// hooks names the netfilter hooks in words.
func (p passage) hooks() string {
	if len(p.Hooks) == 0 {
		return "no netfilter hook with rules"
	}
	return count(len(p.Hooks), "netfilter hook") + ": " + strings.Join(p.Hooks, "; ")
}

// passages prints what packets pass.
func (p *printer) passages(s *set) {
	list := s.passages()
	if len(list) == 0 {
		return
	}
	p.subheading("What the packets pass, " + lowerFirst(s.name))
	for _, way := range list {
		devices := strings.Join(way.Devices, ", ")
		if devices == "" {
			devices = "no device"
		}
		p.paragraph(fmt.Sprintf("%s: %s softirqs per %s; through %s; %s", way.Way, way.Softirqs, s.cpuUnit, devices, way.hooks()), 2)
	}
}
