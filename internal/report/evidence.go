// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// Evidence is what was counted while a row ran.
type Evidence struct {
	ID, Color string
	// Softirqs is the number per unit of CPU time.
	Softirqs string
	// Devices, Programs and Hooks have a line for each with its counters, and Ends
	// for each address and connection that was seen.
	Devices, Programs, Ends, Hooks []string
	// Findings tell what does not fit the path that the row claims.
	Findings []string
}

// evidence lists the evidence of the rows that ran.
func (t *workloadTable) evidence() []Evidence {
	var out []Evidence
	for _, e := range t.entries {
		if e.Status == result.StatusSkipped {
			continue
		}
		out = append(out, Evidence{
			ID: format.Clean(e.ID), Color: t.kindOf(e).Color, Softirqs: e.softirqs(), Devices: e.devices(), Programs: e.programs(" "),
			Ends: append(e.ends(), e.attachments()...), Hooks: format.CleanAll(e.Row.Evidence.Hooks), Findings: format.CleanAll(e.Row.Evidence.Findings),
		})
	}
	return out
}

// softirqs prints the softirqs per unit.
func (e *entry) softirqs() string {
	if n := e.Evidence.SoftirqsPerUnit; n > 0 {
		return format.Number(n, format.FewDecimals(n))
	}
	return format.None
}

// programs lists the program counters that rose while the row ran, each name and
// count joined by a separator.
func (e *entry) programs(separator string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(e.Evidence.ProgramRuns)) {
		if n := e.Evidence.ProgramRuns[name]; n > 0 {
			out = append(out, format.Clean(name)+separator+format.Number(float64(n), 0))
		}
	}
	return out
}

// devices lists the packets of each device on the path.
func (e *entry) devices() []string {
	var out []string
	for _, d := range e.Evidence.Devices {
		name := format.Clean(d.Name)
		if d.Host != "" {
			name = format.Clean(d.Host) + "/" + name
		}
		out = append(out, fmt.Sprintf("%s rx %s tx %s", name, format.Number(float64(d.RxPackets), 0), format.Number(float64(d.TxPackets), 0)))
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
			out = append(out, fmt.Sprintf("%s %s to %s", end.name, format.Clean(end.Local), format.Clean(end.Peer)))
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
			out = append(out, "a pod reached "+format.Clean(a.Reached))
		}
		if len(a.Kept) > 0 {
			out = append(out, "left on the host: "+format.Clean(strings.Join(a.Kept, ", ")))
		}
	}
	if n := e.Evidence.Connections; n > 0 {
		out = append(out, strconv.Itoa(n)+" in the connection table")
	}
	return out
}
