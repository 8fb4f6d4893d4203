// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/explain/steps"
)

// paths is a table of what the packets of the measured rows pass, if the suite shows it; else nil.
func (t *workloadTable) paths() *Table {
	measured := t.of(t.measured())
	if !t.suite.PacketPath || len(measured.entries) == 0 {
		return nil
	}
	out := measured.listed(t.name, []Column{
		measured.texts(0, func(e *entry) string { return e.name }, "way"),
		measured.texts(0, func(e *entry) string { return lines(e.busyDevices()) }, "devices"),
		measured.texts(0, func(e *entry) string { return lines(cleanAll(e.Evidence.Hooks)) }, "netfilter hooks with rules"),
		measured.texts(0, (*entry).softirqs, "softirqs", "per "+shortUnit(t.cpuUnit)),
	})
	return &out
}

// fewPackets is the share of the busiest device's packets below which a device did
// not carry the traffic, but saw an occasional packet of another kind.
const fewPackets = 0.1

// busyDevices names the devices that carried the traffic, by namespace.
func (e *entry) busyDevices() []string {
	busiest := 0.0
	for _, d := range e.Evidence.Devices {
		busiest = max(busiest, float64(d.RxPackets)+float64(d.TxPackets))
	}
	var places []string
	names := map[string][]string{}
	for _, d := range e.Evidence.Devices {
		if n := float64(d.RxPackets) + float64(d.TxPackets); n == 0 || n < fewPackets*busiest {
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

// tracedAs is the place of a row's path among the traces, from 1 on; 0 if it was not traced.
func (st *suiteTables) tracedAs(id string) int {
	at := 0
	for _, t := range st.traced {
		if t.Suite != st.Name {
			continue
		}
		if at++; t.ID == id {
			return at
		}
	}
	return 0
}

// traces returns what the packets of rows crossed, each under the row's ID.
func (st *suiteTables) traces() []steps.Path {
	var out []steps.Path
	for _, t := range st.traced {
		if t.Suite != st.Name {
			continue
		}
		p := steps.Path{Title: clean(t.ID), Note: steps.Note(t.UntracedNS, "ns", t.Alike), Clock: "ns"}
		if len(t.Omitted) > 0 {
			p.Note += "; not shown: " + strings.Join(cleanAll(t.Omitted), ", ")
		}
		for _, s := range t.Steps {
			s.Class, s.Kind, s.Place, s.Device, s.Name = clean(s.Class), clean(s.Kind), clean(s.Place), clean(s.Device), clean(s.Name)
			p.Steps = append(p.Steps, s)
		}
		out = append(out, p)
	}
	return out
}
