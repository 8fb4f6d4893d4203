// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"

	"mustang/internal/explain/steps"
	"mustang/internal/report/format"
)

// Path is what the packets of a row pass.
type Path struct {
	Name, Color string
	// Softirqs is the number per unit of CPU time.
	Softirqs string
	// Devices has an entry for each namespace, with its devices in parentheses.
	Devices []string
	// Hooks are the netfilter hooks with rules.
	Hooks []string
}

// HookCount says how many hooks there are.
func (p Path) HookCount() string {
	if len(p.Hooks) == 0 {
		return "none"
	}
	return format.Count(len(p.Hooks), "hook")
}

// String describes the path, with the softirqs per unit.
func (p Path) String(unit string) string {
	devices, hooks := "no device", "no netfilter hook with rules"
	if len(p.Devices) > 0 {
		devices = strings.Join(p.Devices, ", ")
	}
	if len(p.Hooks) > 0 {
		hooks = format.Count(len(p.Hooks), "netfilter hook") + ": " + strings.Join(p.Hooks, "; ")
	}
	return p.Name + ": " + p.Softirqs + " softirqs per " + unit + "; through " + devices + "; " + hooks
}

// paths lists the paths of the measured rows if the suite shows them.
func (t *workloadTable) paths() []Path {
	if !t.suite.PacketPath {
		return nil
	}
	var out []Path
	for _, e := range t.measured() {
		out = append(out, Path{
			Name: e.name, Color: t.kindOf(e).Color, Softirqs: e.softirqs(), Devices: e.busyDevices(), Hooks: format.CleanAll(e.Evidence.Hooks),
		})
	}
	return out
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
		place := format.Clean(d.Host)
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
		names[place] = append(names[place], format.Clean(d.Name))
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
		p := steps.Path{Title: format.Clean(t.ID), Note: steps.Note(t.UntracedNS, "ns", t.Alike), Clock: "ns"}
		if len(t.Omitted) > 0 {
			p.Note += "; not shown: " + strings.Join(format.CleanAll(t.Omitted), ", ")
		}
		for _, s := range t.Steps {
			s.Class, s.Kind, s.Place, s.Device, s.Name = format.Clean(s.Class), format.Clean(s.Kind), format.Clean(s.Place), format.Clean(s.Device), format.Clean(s.Name)
			p.Steps = append(p.Steps, s)
		}
		out = append(out, p)
	}
	return out
}
