// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/datapath/flows"
)

// statusSchema is the version of the JSON of status and counters.
const statusSchema = 1

// netkitFeature is the name of the feature that only links of mode netkit need.
const netkitFeature = "netkit programs"

func writeJSON(w io.Writer, what any) error {
	return json.MarshalEncode(jsontext.NewEncoder(w, jsontext.WithIndent("  ")), what)
}

// writeCounters writes counters in a format, table or json. Unless all is set, the table leaves out counters of 0.
func writeCounters(w io.Writer, format string, counters []flows.Counter, all bool) error {
	if format == "json" {
		return writeJSON(w, struct {
			Schema   int             `json:"schema"`
			Counters []flows.Counter `json:"counters"`
		}{statusSchema, counters})
	}
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "COUNTER\tDROP\tPACKETS\tMEANING")
	for _, c := range counters {
		if all || c.Packets > 0 {
			fmt.Fprintf(tab, "%s\t%t\t%d\t%s\n", c.Name, c.Drop, c.Packets, c.Meaning)
		}
	}
	return tab.Flush()
}

// writeStatus writes a report as tables: first faults, then drops that happened and features that are missing. It omits
// the netkit feature: a command that needs netkit reports it.
func writeStatus(w io.Writer, r *statusReport) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	switch n := len(r.Findings); n {
	case 0:
		fmt.Fprintln(tab, "ok")
	case 1:
		fmt.Fprintln(tab, "1 problem:")
	default:
		fmt.Fprintf(tab, "%d problems:\n", n)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(tab, "  %s (what helps: %s)\n", f.What, f.Do)
	}
	loaded := "nothing is loaded"
	if len(r.Layouts) > 0 {
		loaded = "maps of layout " + strings.Join(r.Layouts, ", ")
	}
	fmt.Fprintf(tab, "%s: %s\n", r.Root, loaded)
	switch {
	case r.Policies.Audited:
		fmt.Fprintf(tab, "network policies: %d, audited only: what they deny passes\n", r.Policies.Count)
	case r.Policies.Count > 0:
		fmt.Fprintf(tab, "network policies: %d\n", r.Policies.Count)
	}
	if len(r.Unguarded) > 0 {
		fmt.Fprintf(tab, "source guard off: %s\n", strings.Join(r.Unguarded, ", "))
	}
	begin := func(rows int, header string) {
		if rows > 0 {
			fmt.Fprintf(tab, "\n%s\n", header)
		}
	}
	begin(len(r.Programs), "PROGRAM\tATTACHED\tBUILD")
	for _, p := range r.Programs {
		fmt.Fprintf(tab, "%s\t%d\t%s\n", p.Pin, p.Attached, map[bool]string{true: "this", false: "another"}[p.Current])
	}
	begin(len(r.Maps), "MAP\tROWS\tSIZE\tFILL\tMEMORY")
	for _, m := range r.Maps {
		fill := "-\t-\t-"
		if m.Size > 0 {
			fill = fmt.Sprintf("%d\t%d\t%.1f %%", m.Rows, m.Size, 100*float64(m.Rows)/float64(m.Size))
		}
		fmt.Fprintf(tab, "%s\t%s\t%.1f MiB\n", m.Name, fill, float64(m.Bytes)/(1<<20))
	}
	drops := slices.DeleteFunc(slices.Clone(r.Drops), func(d statusDrop) bool { return d.Packets == 0 })
	begin(len(drops), "DROPPED\tPACKETS\tMEANING")
	for _, d := range drops {
		fmt.Fprintf(tab, "%s\t%d\t%s\n", d.Name, d.Packets, d.Meaning)
	}
	missing := slices.DeleteFunc(slices.Clone(r.Features), func(f feature) bool {
		return f.Missing == "" || f.Name == netkitFeature
	})
	begin(len(missing), "MISSING FEATURE\tNEEDS\tREASON")
	for _, f := range missing {
		fmt.Fprintf(tab, "%s\t%s\t%s\n", f.Name, f.Needs, f.Missing)
	}
	return tab.Flush()
}
