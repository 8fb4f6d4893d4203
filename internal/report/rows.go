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

func (t *workload) rowTable() Table {
	all := convert(filter(t.entries, (*entry).ok), func(e *entry) float64 { return e.Median })
	unit, perUnit := shortUnit(t.unit), "per "+shortUnit(t.cpuUnit)
	first, figure, offered, lost, latency, scale := "connection", "figure", unit, shortUnit(t.cpuUnit), "µs", 1.0
	if t.suite.list() {
		first = "way"
	}
	if t.Setup.Paced() {
		offered = shortUnit(result.UnitTransactions)
	} else if slices.ContainsFunc(t.entries, func(e *entry) bool { return e.Offered > 0 }) {
		figure = "received"
	}
	if t.Workload == result.WorkloadUDPStream {
		lost = "of sent"
	}
	if t.calls() {
		latency, scale = "ms", 1e3
	}
	out := &Table{ID: t.anchor, Title: t.heading(), Columns: []Column{
		left(0, first), left(0, "target"), left(0, "via"), right(3, "offered", offered), right(0, figure, unit),
		right(6, "95 % interval", unit), right(2, "mean", "µs"), right(3, "CPU µs", perUnit), right(2, "lost", lost),
		right(4, "p50", latency), right(8, "p90", latency), right(5, "p99", latency), right(8, "p99.9", latency),
		right(3, "calls", "per s"), right(RankDetail, "rounds"), right(RankDetail, "softirqs", perUnit), left(1, "status"),
		left(6, "variant")}}
	for i, e := range t.entries {
		line := t.line(e)
		line.First, line.Path = i == 0 || t.entries[i-1].name != e.name, t.suite.tracedAs(e.ID)
		target, via, mean, variant := cmp.Or(targetNames[e.Target], e.Target), e.via(), 0.0, ""
		if t.suite.list() {
			target, via, mean = "", "", t.meanLatency(e, e.Median)
			if t.suite.Variants {
				variant = None
			}
			if t.suite.Variants && e.Repeats == "" && e.Variant != "" {
				variant = e.Variant
			}
		}
		figure := func(v float64) string {
			if !e.ok() {
				return None
			}
			return positive(v)
		}
		median, interval, rounds := None, None, cmp.Or(strings.TrimPrefix(integer(len(e.Samples)), "0"), None)
		if e.ok() {
			places := max(decimals(all...), fewDecimals(e.Median))
			median, interval = Number(e.Median, places), intervalText(e.CI95, places)
		}
		p := result.Latency{}
		if e.LatencyUS != nil {
			p = *e.LatencyUS
		}
		out.add(line, e.name, target, via, figure(e.Offered), median, interval, figure(mean), figure(e.CPUUSPerUnit),
			t.lost(e), figure(p.P50/scale), figure(p.P90/scale), figure(p.P99/scale), figure(p.P999/scale),
			figure(e.CallsPerSecond), rounds, figure(e.Evidence.SoftirqsPerUnit), e.Status, variant)
	}
	out.Notes = append(out.trimmed().legend(t.turns()), t.notes()...)
	if !t.suite.list() && len(t.contest) > 1 {
		out.Notes = append(out.Notes, "A figure here is the row's own. In the answer, a link's is the best link's times "+
			"their ratio within rounds, which is free of drift.")
	}
	return *out
}

// lost prints the datagrams of a stream that did not arrive or came out of order, or the lost transactions.
func (t *workload) lost(e *entry) string {
	switch {
	case !e.ok():
		return None
	case t.Workload == result.WorkloadTCPCRR || t.Workload == result.WorkloadUDPRR:
		return positive(float64(e.Lost))
	case t.Workload != result.WorkloadUDPStream || t.suite.run.Counted():
		return None
	case e.OutOfOrder > 0:
		return fmt.Sprintf("%s, %s late", percentOf(e.LostShare), integer(e.OutOfOrder))
	}
	return percentOf(e.LostShare)
}

// via names what translates the address, and the service proxy that is in place though the row does not use it.
func (e *entry) via() string {
	if e.Via == result.ViaNone && e.Proxy != "" && e.Datapath != result.DatapathEBPF {
		return "none (" + viaName(e.Proxy) + " in place)"
	}
	return viaName(e.Via)
}

func (t *workload) notes() []string {
	total, noted := map[string]int{}, map[[2]string]int{}
	for _, e := range t.entries {
		total[e.name]++
		noted[[2]string{e.name, e.Note}]++
	}
	var by byReason[string]
	for _, e := range t.entries {
		name := e.ID
		if n := noted[[2]string{e.name, e.Note}]; n > 1 && n == total[e.name] {
			name = e.name
		}
		if e.Note != "" && !slices.Contains(by.items[e.Note], name) {
			by.add(e.Note, name)
		}
	}
	return by.texts(func(note string, names []string) string { return strings.Join(names, ", ") + ": " + note })
}

// evidence returns the counts taken while the rows ran. Cells have a line for each counter, address or connection.
func (t *workload) evidence() Table {
	out := &Table{Title: t.name, Columns: []Column{left(0, "row"), left(0, "devices, packets"),
		left(0, "programs, runs"), left(0, "connection"), left(0, "netfilter hooks"),
		right(0, "softirqs", "per "+shortUnit(t.cpuUnit))}}
	for _, e := range t.entries {
		if e.Status == result.StatusSkipped {
			continue
		}
		connection := Cell{Text: lines(append(e.ends(), e.Evidence.Findings...))}
		if len(e.Evidence.Findings) > 0 {
			connection.Class = result.StatusFailed
		}
		devices := convert(e.Evidence.Devices, func(d result.DeviceCount) string {
			return fmt.Sprintf("%s rx %s tx %s", strings.TrimPrefix(d.Host+"/"+d.Name, "/"), integer(d.RxPackets),
				integer(d.TxPackets))
		})
		var programs []string
		for _, name := range slices.Sorted(maps.Keys(e.Evidence.ProgramRuns)) {
			if n := e.Evidence.ProgramRuns[name]; n > 0 {
				programs = append(programs, name+" "+integer(n))
			}
		}
		out.add(t.line(e), e.ID, lines(devices), lines(programs), connection, lines(e.Evidence.Hooks),
			positive(e.Evidence.SoftirqsPerUnit))
	}
	return *out.trimmed()
}

func lines(parts []string) string { return cmp.Or(strings.Join(parts, "\n"), None) }

// ends lists the addresses that client and server saw, the results of calls of a CNI plugin and the connection entries.
func (e *entry) ends() (out []string) {
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

func (t *workload) paths() *Table {
	measured := t.measured()
	if !t.suite.PacketPath || len(measured) == 0 {
		return nil
	}
	out := &Table{Title: t.name, Columns: []Column{left(0, "way"), left(0, "devices"),
		left(0, "netfilter hooks with rules"), right(0, "softirqs", "per "+shortUnit(t.cpuUnit))}}
	for _, e := range measured {
		out.add(t.line(e), e.name, lines(e.busyDevices()), lines(e.Evidence.Hooks), positive(e.Evidence.SoftirqsPerUnit))
	}
	return out.trimmed()
}

// fewPackets is the share of the busiest device's packets below which a device did not carry the traffic.
const fewPackets = 0.1

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
	return by.texts(func(host string, devices []string) string {
		return strings.TrimPrefix(host+" ("+strings.Join(devices, ", ")+")", " ")
	})
}

// tracedAs is the place of a row's path among the traces, from 1 on; 0 if it was not traced.
func (st *suite) tracedAs(id string) int {
	return 1 + slices.IndexFunc(st.traces, func(t result.Trace) bool { return t.ID == id })
}

func (t *workload) cpuTable() *Table {
	shown := filter(t.entries, func(e *entry) bool { return e.ok() && e.CPUSplit != nil })
	if len(shown) == 0 {
		return nil
	}
	out := &Table{ID: t.anchor + "-cpu", Title: "CPU time, " + LowerFirst(t.name), Columns: []Column{left(0, "row"),
		right(0, "CPU µs per "+shortUnit(t.cpuUnit)), right(0, "user"), right(0, "system"), right(0, "softirq"),
		left(0, "eBPF programs")},
		Notes: []string{"CPU time counts the whole machine. The kernel counts its parts in ticks, and hardware " +
			"interrupts apart, so the parts do not add up exactly."}}
	for i, e := range shown {
		line := t.line(e)
		line.First = i == 0 || shown[i-1].name != e.name
		out.add(line, e.ID, positive(e.CPUUSPerUnit), positive(e.CPUSplit.UserUS), positive(e.CPUSplit.SystemUS),
			positive(e.CPUSplit.SoftirqUS), e.programTimes(t.cpuUnit))
	}
	out.trimmed()
	if slices.ContainsFunc(shown, func(e *entry) bool { return len(e.BPFNanos) > 0 }) {
		out.Notes = append(out.Notes, "The time of an eBPF program is measured in a short run of its own, "+
			"less the time of an empty program.")
	}
	return out
}

func (e *entry) programTimes(unit string) string {
	return strings.Join(convert(e.BPFNanos, func(p result.ProgramTime) string {
		return fmt.Sprintf("%s %s\u00a0ns, %s per %s", p.Program, Number(p.NanosPerRun, fewDecimals(p.NanosPerRun)),
			Number(p.RunsPerUnit, fewDecimals(p.RunsPerUnit)), shortUnit(unit))
	}), "; ")
}
