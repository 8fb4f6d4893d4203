// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mustang/internal/result"
)

// rowTable has a line for each row.
func (t *workload) rowTable() Table {
	name := func(e *entry) string { return e.name }
	columns := []column[*entry]{texts(0, name, "connection"),
		texts(0, func(e *entry) string { return cmp.Or(targetNames[e.Target], e.Target) }, "target"),
		texts(0, (*entry).via, "via")}
	mean := func(*entry) float64 { return 0 }
	if t.suite.list() {
		columns, mean = columns[:1], t.meanLatency
		columns[0].head = []string{"way"}
	}
	perUnit := "per " + shortUnit(t.cpuUnit)
	columns = slices.Concat(columns, t.medians(), []column[*entry]{
		figures(2, mean, "mean", "µs"),
		figures(3, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs", perUnit), t.lost()},
		t.percentiles(), []column[*entry]{
			figures(3, func(e *entry) float64 { return e.CallsPerSecond }, "calls", "per s"),
			numbers(RankDetail, func(e *entry) string { return cmp.Or(strings.TrimPrefix(integer(len(e.Samples)), "0"), None) },
				"rounds"),
			figures(RankDetail, func(e *entry) float64 { return e.Evidence.SoftirqsPerUnit }, "softirqs", perUnit),
			texts(1, func(e *entry) string { return e.Status }, "status")})
	if t.suite.list() && t.suite.Variants {
		columns = append(columns, texts(6, func(e *entry) string {
			if e.Repeats != "" {
				return None
			}
			return cmp.Or(e.Variant, None)
		}, "variant"))
	}
	out := t.table(t.anchor, t.heading(), t.entries, columns...)
	for i, e := range t.entries {
		out.Lines[i].First = i == 0 || t.entries[i-1].name != e.name
		out.Lines[i].Path = t.suite.tracedAs(e.ID)
	}
	out.Notes = append(out.legend(t.turns()), t.notes()...)
	if !t.suite.list() && len(t.contest) > 1 {
		out.Notes = append(out.Notes, "A figure here is the row's own. In the answer, a link's is the best link's times "+
			"their ratio within rounds, which is free of drift.")
	}
	return *out
}

// via names what translates the address, and the service proxy that is in place though the row does not use it.
func (e *entry) via() string {
	if e.Via == result.ViaNone && e.Proxy != "" && e.Datapath != result.DatapathEBPF {
		return "none (" + viaName(e.Proxy) + " in place)"
	}
	return viaName(e.Via)
}

// medians are the columns of the figures, and of what was offered.
func (t *workload) medians() []column[*entry] {
	var all []float64
	for _, e := range t.entries {
		if e.ok() {
			all = append(all, e.Median)
		}
	}
	places := func(e *entry) int { return max(decimals(all...), fewDecimals(e.Median)) }
	unit, head, offered := shortUnit(t.unit), "figure", shortUnit(t.unit)
	if t.Setup.Paced() {
		offered = shortUnit(result.UnitTransactions)
	} else if slices.ContainsFunc(t.entries, func(e *entry) bool { return e.Offered > 0 }) {
		head = "received"
	}
	return []column[*entry]{
		figures(3, func(e *entry) float64 { return e.Offered }, "offered", offered),
		known(0, func(e *entry) string { return Number(e.Median, places(e)) }, head, unit),
		known(6, func(e *entry) string { return intervalText(e.CI95, places(e)) }, "95 % interval", unit),
	}
}

// lost is the column of the datagrams that did not arrive or came out of order, or of
// the transactions that were lost, if any was.
func (t *workload) lost() column[*entry] {
	switch {
	case t.Workload == result.WorkloadTCPCRR || t.Workload == result.WorkloadUDPRR:
		return figures(2, func(e *entry) float64 { return float64(e.Lost) }, "lost", shortUnit(t.cpuUnit))
	case t.Workload != result.WorkloadUDPStream || t.suite.run.Counted():
		return figures(2, func(*entry) float64 { return 0 })
	}
	return known(2, func(e *entry) string {
		text := percentOf(e.LostShare)
		if e.OutOfOrder > 0 {
			text += fmt.Sprintf(", %s late", integer(e.OutOfOrder))
		}
		return text
	}, "lost", "of sent")
}

// percentiles are the columns of the latency: of calls in ms.
func (t *workload) percentiles() (out []column[*entry]) {
	unit, scale := "µs", 1.0
	if t.calls() {
		unit, scale = "ms", 1e3
	}
	for i, name := range []string{"p50", "p90", "p99", "p99.9"} {
		out = append(out, figures([]int{4, 8, 5, 8}[i], func(e *entry) float64 {
			if l := e.LatencyUS; l != nil {
				return []float64{l.P50, l.P90, l.P99, l.P999}[i] / scale
			}
			return 0
		}, name, unit))
	}
	return out
}

// notes lists the remarks on rows, each once with the rows that have it, or with the
// connection if all of its rows have it.
func (t *workload) notes() []string {
	total, noted := map[string]int{}, map[[2]string]int{}
	var by byReason[*entry]
	for _, e := range t.entries {
		total[e.name]++
		noted[[2]string{e.name, e.Note}]++
		if e.Note != "" {
			by.add(e.Note, e)
		}
	}
	var notes []string
	for _, note := range by.reasons {
		var names []string
		for _, e := range by.items[note] {
			name := e.ID
			if n := noted[[2]string{e.name, note}]; n > 1 && n == total[e.name] {
				name = e.name
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		notes = append(notes, strings.Join(names, ", ")+": "+note)
	}
	return notes
}

// evidence is a table of what was counted while the rows ran. Cells have a line for each counter, address or
// connection.
func (t *workload) evidence() Table {
	ran := filter(t.entries, func(e *entry) bool { return e.Status != result.StatusSkipped })
	out := t.table("", t.name, ran,
		texts(0, func(e *entry) string { return e.ID }, "row"),
		texts(0, func(e *entry) string { return lines(e.devices()) }, "devices, packets"),
		texts(0, func(e *entry) string { return lines(e.programs()) }, "programs, runs"),
		texts(0, func(e *entry) string { return lines(append(e.ends(), e.Evidence.Findings...)) }, "connection"),
		texts(0, func(e *entry) string { return lines(e.Evidence.Hooks) }, "netfilter hooks"),
		t.softirqs())
	for i, e := range ran {
		if len(e.Evidence.Findings) > 0 {
			out.Columns[3].Cells[i].Class = result.StatusFailed
		}
	}
	return *out
}

// lines joins the lines of a cell.
func lines(parts []string) string { return cmp.Or(strings.Join(parts, "\n"), None) }

// softirqs is the column of the softirqs per unit, also of rows that have failed.
func (t *workload) softirqs() column[*entry] {
	return numbers(0, func(e *entry) string { return positive(e.Evidence.SoftirqsPerUnit) }, "softirqs",
		"per "+shortUnit(t.cpuUnit))
}

// programs lists the program counters that rose while the row ran.
func (e *entry) programs() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(e.Evidence.ProgramRuns)) {
		if n := e.Evidence.ProgramRuns[name]; n > 0 {
			out = append(out, name+" "+integer(n))
		}
	}
	return out
}

// devices lists the packets of each device on the path.
func (e *entry) devices() []string {
	var out []string
	for _, d := range e.Evidence.Devices {
		out = append(out, fmt.Sprintf("%s rx %s tx %s", strings.TrimPrefix(d.Host+"/"+d.Name, "/"), integer(d.RxPackets),
			integer(d.TxPackets)))
	}
	return out
}

// ends lists the addresses that client and server saw, the results of calls of a CNI plugin and the connection entries.
func (e *entry) ends() []string {
	var out []string
	for i, end := range []result.Addresses{e.Evidence.Client, e.Evidence.Server} {
		if end != (result.Addresses{}) {
			out = append(out, fmt.Sprintf("%s %s to %s", []string{"client", "server"}[i], end.Local, end.Peer))
		}
	}
	if a := e.Evidence.Attachments; a != nil {
		out = append(out, fmt.Sprintf("%d attached, %d detached", a.Added, a.Removed))
		if a.Reached != "" {
			out = append(out, "a pod reached "+a.Reached)
		}
		if len(a.Kept) > 0 {
			out = append(out, "left on the host: "+strings.Join(a.Kept, ", "))
		}
	}
	if n := e.Evidence.Connections; n > 0 {
		out = append(out, fmt.Sprintf("%d in the connection table", n))
	}
	return out
}

// paths is a table of what the packets of the measured rows pass, if the suite shows it; else nil.
func (t *workload) paths() *Table {
	measured := t.measured()
	if !t.suite.PacketPath || len(measured) == 0 {
		return nil
	}
	return t.table("", t.name, measured,
		texts(0, func(e *entry) string { return e.name }, "way"),
		texts(0, func(e *entry) string { return lines(e.busyDevices()) }, "devices"),
		texts(0, func(e *entry) string { return lines(e.Evidence.Hooks) }, "netfilter hooks with rules"),
		t.softirqs())
}

// fewPackets is the share of the busiest device's packets below which a device did
// not carry the traffic, but saw an occasional packet of another kind.
const fewPackets = 0.1

// busyDevices names the devices that carried the traffic, by namespace.
func (e *entry) busyDevices() []string {
	busiest := 0.0
	packets := func(d result.DeviceCount) float64 { return float64(d.RxPackets) + float64(d.TxPackets) }
	for _, d := range e.Evidence.Devices {
		busiest = max(busiest, packets(d))
	}
	var by byReason[string]
	for _, d := range e.Evidence.Devices {
		if n := packets(d); n > 0 && n >= fewPackets*busiest {
			by.add(d.Host, d.Name)
		}
	}
	for i, host := range by.reasons {
		by.reasons[i] = strings.TrimPrefix(host+" ("+strings.Join(by.items[host], ", ")+")", " ")
	}
	return by.reasons
}

// tracedAs is the place of a row's path among the traces, from 1 on; 0 if it was not traced.
func (st *suite) tracedAs(id string) int {
	return 1 + slices.IndexFunc(st.traces, func(t result.Trace) bool { return t.ID == id })
}

// paths returns what the packets of rows crossed, each under the row's ID.
func (st *suite) paths() []Path {
	var out []Path
	for _, t := range st.traces {
		out = append(out, NewPath(t.ID, t, "ns"))
	}
	return out
}

// cpuTable has the CPU time of the rows by its kind, and of their BPF programs; nil
// if no row has them apart.
func (t *workload) cpuTable() *Table {
	shown := filter(t.entries, func(e *entry) bool { return e.ok() && e.CPUSplit != nil })
	if len(shown) == 0 {
		return nil
	}
	columns := []column[*entry]{
		texts(0, func(e *entry) string { return e.ID }, "row"),
		figures(0, func(e *entry) float64 { return e.CPUUSPerUnit }, "CPU µs per "+shortUnit(t.cpuUnit)),
		figures(0, func(e *entry) float64 { return e.CPUSplit.UserUS }, "user"),
		figures(0, func(e *entry) float64 { return e.CPUSplit.SystemUS }, "system"),
		figures(0, func(e *entry) float64 { return e.CPUSplit.SoftirqUS }, "softirq"),
	}
	notes := []string{"CPU time counts the whole machine. The kernel counts its parts in ticks, and hardware " +
		"interrupts apart, so that they add up only about."}
	if slices.ContainsFunc(shown, func(e *entry) bool { return len(e.BPFNanos) > 0 }) {
		columns = append(columns, texts(0, func(e *entry) string { return e.programTimes(t.cpuUnit) }, "eBPF programs"))
		notes = append(notes, "The time of an eBPF program is measured in a short run of its own, "+
			"less the time of an empty program.")
	}
	out := t.table(t.anchor+"-cpu", "CPU time, "+LowerFirst(t.name), shown, columns...)
	for i, e := range shown {
		out.Lines[i].First = i == 0 || shown[i-1].name != e.name
	}
	out.Notes = notes
	return out
}

// programTimes lists the runs of the entry's BPF programs and the time of each.
func (e *entry) programTimes(unit string) string {
	var out []string
	for _, p := range e.BPFNanos {
		out = append(out, fmt.Sprintf("%s %s\u00a0ns, %s per %s", p.Program,
			Number(p.NanosPerRun, fewDecimals(p.NanosPerRun)),
			Number(p.RunsPerUnit, fewDecimals(p.RunsPerUnit)), shortUnit(unit)))
	}
	return cmp.Or(strings.Join(out, "; "), None)
}
