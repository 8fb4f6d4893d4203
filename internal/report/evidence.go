// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// evidence is a table of what was counted while the rows ran. Cells have a line for each counter, address or connection.
func (t *workloadTable) evidence() Table {
	ran := t.of(slices.DeleteFunc(slices.Clone(t.entries), func(e *entry) bool { return e.Status == result.StatusSkipped }))
	out := ran.listed(t.name, []Column{
		ran.texts(0, func(e *entry) string { return clean(e.ID) }, "row"),
		ran.texts(0, func(e *entry) string { return lines(e.devices()) }, "devices, packets"),
		ran.texts(0, func(e *entry) string { return lines(e.programs()) }, "programs, runs"),
		ran.texts(0, func(e *entry) string {
			return lines(slices.Concat(e.ends(), e.attachments(), cleanAll(e.Evidence.Findings)))
		}, "connection"),
		ran.texts(0, func(e *entry) string { return lines(cleanAll(e.Evidence.Hooks)) }, "netfilter hooks"),
		ran.texts(0, (*entry).softirqs, "softirqs", "per "+shortUnit(t.cpuUnit)),
	})
	for i, e := range ran.entries {
		if len(e.Evidence.Findings) > 0 {
			out.Columns[3].Cells[i].Class = result.StatusFailed
		}
	}
	return out
}

// listed is a table of the entries with these columns, of which the last has figures.
func (t *workloadTable) listed(title string, columns []Column) Table {
	out := Table{Title: title, Columns: columns}
	out.Columns[len(columns)-1].Right = true
	for _, e := range t.entries {
		out.Lines = append(out.Lines, Line{Status: e.Status, Color: t.kindOf(e).Color})
	}
	return out
}

// lines joins the lines of a cell.
func lines(parts []string) string { return cmp.Or(strings.Join(parts, "\n"), None) }

// softirqs prints the softirqs per unit.
func (e *entry) softirqs() string {
	if n := e.Evidence.SoftirqsPerUnit; n > 0 {
		return Number(n, fewDecimals(n))
	}
	return None
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
		out = append(out, fmt.Sprintf("%s rx %s tx %s", name, Number(float64(d.RxPackets), 0), Number(float64(d.TxPackets), 0)))
	}
	return out
}

// ends lists the addresses that client and server saw.
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
	return out
}

// attachments lists the results of calls of a CNI plugin and the connection entries.
func (e *entry) attachments() []string {
	var out []string
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
		out = append(out, strconv.Itoa(n)+" in the connection table")
	}
	return out
}
