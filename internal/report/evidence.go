// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mustang/internal/explain/steps"

	"mustang/internal/result"
)

// evidence is a table of what was counted while the rows ran. Cells have a line for each counter, address or
// connection.
func (t *workloadTable) evidence() Table {
	ran := slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return e.Status == result.StatusSkipped })
	out := t.table("", t.name, ran,
		texts(0, func(e *entry) string { return clean(e.ID) }, "row"),
		texts(0, func(e *entry) string { return lines(e.devices()) }, "devices, packets"),
		texts(0, func(e *entry) string { return lines(e.programs()) }, "programs, runs"),
		texts(0, func(e *entry) string { return lines(append(e.ends(), cleanAll(e.Evidence.Findings)...)) }, "connection"),
		texts(0, func(e *entry) string { return lines(cleanAll(e.Evidence.Hooks)) }, "netfilter hooks"),
		t.softirqs())
	for i, e := range ran {
		out.Lines[i].First = false
		if len(e.Evidence.Findings) > 0 {
			out.Columns[3].Cells[i].Class = result.StatusFailed
		}
	}
	return out
}

// lines joins the lines of a cell.
func lines(parts []string) string { return cmp.Or(strings.Join(parts, "\n"), None) }

// softirqs is the column of the softirqs per unit, also of rows that have failed.
func (t *workloadTable) softirqs() column {
	text := func(e *entry) string { return positive(e.Evidence.SoftirqsPerUnit) }
	return column{0, true, text, []string{"softirqs", "per " + shortUnit(t.cpuUnit)}}
}

// programs lists the program counters that rose while the row ran.
func (e *entry) programs() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(e.Evidence.ProgramRuns)) {
		if n := e.Evidence.ProgramRuns[name]; n > 0 {
			out = append(out, clean(name)+" "+Number(float64(n), 0))
		}
	}
	return out
}

// devices lists the packets of each device on the path.
func (e *entry) devices() []string {
	var out []string
	for _, d := range e.Evidence.Devices {
		name := clean(d.Name)
		if d.Host != "" {
			name = clean(d.Host) + "/" + name
		}
		out = append(out, fmt.Sprintf("%s rx %s tx %s", name, Number(float64(d.RxPackets), 0),
			Number(float64(d.TxPackets), 0)))
	}
	return out
}

// ends lists the addresses that client and server saw, the results of calls of a CNI plugin and the connection entries.
func (e *entry) ends() []string {
	var out []string
	for _, end := range []struct {
		name string
		result.Addresses
	}{{"client", e.Evidence.Client}, {"server", e.Evidence.Server}} {
		if end.Local != "" || end.Peer != "" {
			out = append(out, fmt.Sprintf("%s %s to %s", end.name, clean(end.Local), clean(end.Peer)))
		}
	}
	if a := e.Evidence.Attachments; a != nil {
		out = append(out, fmt.Sprintf("%d attached, %d detached", a.Added, a.Removed))
		if a.Reached != "" {
			out = append(out, "a pod reached "+clean(a.Reached))
		}
		if len(a.Kept) > 0 {
			out = append(out, "left on the host: "+clean(strings.Join(a.Kept, ", ")))
		}
	}
	if n := e.Evidence.Connections; n > 0 {
		out = append(out, fmt.Sprintf("%d in the connection table", n))
	}
	return out
}

// paths is a table of what the packets of the measured rows pass, if the suite shows it; else nil.
func (t *workloadTable) paths() *Table {
	measured := t.measured()
	if !t.suite.PacketPath || len(measured) == 0 {
		return nil
	}
	out := t.table("", t.name, measured,
		texts(0, func(e *entry) string { return e.name }, "way"),
		texts(0, func(e *entry) string { return lines(e.busyDevices()) }, "devices"),
		texts(0, func(e *entry) string { return lines(cleanAll(e.Evidence.Hooks)) }, "netfilter hooks with rules"),
		t.softirqs())
	for i := range out.Lines {
		out.Lines[i].First = false
	}
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
			s.Class, s.Kind, s.Place, s.Device, s.Name = clean(s.Class), clean(s.Kind), clean(s.Place), clean(s.Device),
				clean(s.Name)
			p.Steps = append(p.Steps, s)
		}
		out = append(out, p)
	}
	return out
}

// costs makes a table of the CPU time of the rows by its kind, and of their BPF programs; nil
// if no row has them apart.
func (t *workloadTable) costs() *Table {
	shown := slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return !e.ok() || e.CPUSplit == nil })
	if len(shown) == 0 {
		return nil
	}
	columns := []column{
		texts(0, func(e *entry) string { return clean(e.ID) }, "row"),
		figures(0, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs per "+shortUnit(t.cpuUnit)),
		figures(0, func(e *entry) float64 { return e.CPUSplit.UserUS }, "user"),
		figures(0, func(e *entry) float64 { return e.CPUSplit.SystemUS }, "system"),
		figures(0, func(e *entry) float64 { return e.CPUSplit.SoftirqUS }, "softirq"),
	}
	notes := []string{"CPU time counts the whole machine. The kernel counts its parts in ticks, and hardware " +
		"interrupts apart, " +
		"so that they add up only about."}
	if slices.ContainsFunc(shown, func(e *entry) bool { return len(e.BPFNanos) > 0 }) {
		columns = append(columns, texts(0, func(e *entry) string { return e.programTimes(t.cpuUnit) }, "eBPF programs"))
		notes = append(notes, "The time of an eBPF program is measured in a short run of its own, "+
			"less the time of an empty program.")
	}
	out := t.table(t.anchor+"-cpu", "CPU time, "+LowerFirst(t.name), shown, columns...)
	out.Notes = notes
	return &out
}

// programTimes lists the runs of the entry's BPF programs and the time of each.
func (e *entry) programTimes(unit string) string {
	var out []string
	for _, p := range e.BPFNanos {
		out = append(out, fmt.Sprintf("%s %s\u00a0ns, %s per %s", clean(p.Program),
			Number(p.NanosPerRun, fewDecimals(p.NanosPerRun)),
			Number(p.RunsPerUnit, fewDecimals(p.RunsPerUnit)), shortUnit(unit)))
	}
	return cmp.Or(strings.Join(out, "; "), None)
}
