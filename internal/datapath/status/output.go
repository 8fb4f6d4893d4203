// SPDX-License-Identifier: Apache-2.0

package status

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

// schema is the version of the JSON.
const schema = 1

// netkit is the name of the feature that links of mode netkit alone need.
const netkit = "netkit programs"

// WriteJSON writes a report as JSON.
func WriteJSON(w io.Writer, r *Report) error {
	type policies struct {
		Count   int  `json:"count"`
		Audited bool `json:"audited"`
	}
	type drop struct {
		Name    string `json:"name"`
		Packets uint64 `json:"packets"`
	}
	type feature struct {
		Name      string `json:"name"`
		Required  bool   `json:"required"`
		Available bool   `json:"available"`
		Missing   string `json:"missing,omitzero"`
	}
	var drops []drop
	for _, d := range r.Drops {
		drops = append(drops, drop{d.Name, d.Packets})
	}
	var features []feature
	for _, f := range r.Features {
		out := feature{Name: f.Name, Required: f.Required, Available: f.Missing == nil}
		if f.Missing != nil {
			out.Missing = f.Missing.Error()
		}
		features = append(features, out)
	}
	return json.MarshalEncode(jsontext.NewEncoder(w, jsontext.WithIndent("  ")), struct {
		Schema   int       `json:"schema"`
		Root     string    `json:"root"`
		Layouts  []string  `json:"layouts"`
		Programs []Program `json:"programs"`
		Links    []Link    `json:"links"`
		Maps     []Map     `json:"maps"`
		Drops    []drop    `json:"drops"`
		Policies policies  `json:"policies"`
		Off      []string  `json:"source_guard_off"`
		Features []feature `json:"features"`
		Amiss    []Finding `json:"amiss"`
	}{schema, r.Root, r.Layouts, r.Programs, r.Links, r.Maps, drops, policies{r.Policies, r.Audited}, r.Unguarded,
		features, r.Findings})
}

// WriteTable writes a report as tables: first what is amiss, of drops those that there were, of features those that are
// missing, but for netkit, which whoever asks for such a link is told of.
func WriteTable(w io.Writer, r *Report) error {
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
	case r.Audited:
		fmt.Fprintf(tab, "network policies: %d, audited only: what they deny passes\n", r.Policies)
	case r.Policies > 0:
		fmt.Fprintf(tab, "network policies: %d\n", r.Policies)
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
	drops := slices.DeleteFunc(slices.Clone(r.Drops), func(c flows.Counter) bool { return c.Packets == 0 })
	begin(len(drops), "DROPPED\tPACKETS\tMEANING")
	for _, d := range drops {
		fmt.Fprintf(tab, "%s\t%d\t%s\n", d.Name, d.Packets, d.Meaning)
	}
	missing := slices.DeleteFunc(slices.Clone(r.Features), func(f Feature) bool {
		return f.Missing == nil ||
			f.Name == netkit
	})
	begin(len(missing), "MISSING FEATURE\tNEEDS\tREASON")
	for _, f := range missing {
		fmt.Fprintf(tab, "%s\t%s\t%v\n", f.Name, f.Needs, f.Missing)
	}
	return tab.Flush()
}
