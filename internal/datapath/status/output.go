// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mustang/internal/datapath/flows"
)

// schema is the version of the JSON.
const schema = 1

// netkit is the name of the feature that links of mode netkit alone need.
const netkit = "netkit programs"

// document is what WriteJSON writes.
type document struct {
	Schema   int           `json:"schema"`
	Root     string        `json:"root"`
	Layouts  []string      `json:"layouts"`
	Programs []programJSON `json:"programs"`
	Links    []linkJSON    `json:"links"`
	Maps     []mapJSON     `json:"maps"`
	Drops    []dropJSON    `json:"drops"`
	Policies policiesJSON  `json:"policies"`
	Off      []string      `json:"source_guard_off"`
	Features []featureJSON `json:"features"`
	Amiss    []findingJSON `json:"amiss"`
}

type programJSON struct {
	Program  string `json:"program"`
	Name     string `json:"name"`
	ID       uint32 `json:"id"`
	Current  bool   `json:"current_build"`
	Attached int    `json:"attached"`
}

type linkJSON struct {
	Name string `json:"name"`
	// On is the index of a device or the id of a control group; 0 if it is gone.
	On        uint64 `json:"on"`
	ProgramID uint32 `json:"program_id"`
}

// mapJSON has -1 for rows and size if the kind of the map has none.
type mapJSON struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Rows  int64  `json:"rows"`
	Size  int64  `json:"size"`
	Bytes uint64 `json:"bytes"`
}

type dropJSON struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
}

type policiesJSON struct {
	Count   int  `json:"count"`
	Audited bool `json:"audited"`
}

type featureJSON struct {
	Name      string `json:"name"`
	Required  bool   `json:"required"`
	Available bool   `json:"available"`
	Missing   string `json:"missing,omitempty"`
}

type findingJSON struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// WriteJSON writes a report as JSON.
func WriteJSON(w io.Writer, r *Report) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r.document())
}

func (r *Report) document() document {
	out := document{
		Schema: schema, Root: r.Root, Layouts: append([]string{}, r.Layouts...), Programs: []programJSON{}, Policies: policiesJSON{r.Policies, r.Audited},
		Off:   append([]string{}, r.Unguarded...),
		Links: []linkJSON{}, Maps: []mapJSON{}, Drops: []dropJSON{}, Features: []featureJSON{}, Amiss: []findingJSON{},
	}
	for _, p := range r.Programs {
		out.Programs = append(out.Programs, programJSON{p.Pin, p.Name, p.ID, p.Current, p.Attached})
	}
	for _, l := range r.Links {
		out.Links = append(out.Links, linkJSON{l.String(), l.On, l.ProgramID})
	}
	for _, m := range r.Maps {
		out.Maps = append(out.Maps, mapJSON(m))
	}
	for _, d := range r.Drops {
		out.Drops = append(out.Drops, dropJSON{d.Name, d.Packets})
	}
	for _, f := range r.Features {
		feature := featureJSON{Name: f.Name, Required: f.Required, Available: f.Missing == nil}
		if f.Missing != nil {
			feature.Missing = f.Missing.Error()
		}
		out.Features = append(out.Features, feature)
	}
	for _, f := range r.Findings {
		out.Amiss = append(out.Amiss, findingJSON(f))
	}
	return out
}

// WriteTable writes a report as tables: first what is amiss, of drops those that there were, of features those that are missing, but
// for netkit, which whoever asks for such a link is told of.
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
	missing := slices.DeleteFunc(slices.Clone(r.Features), func(f Feature) bool { return f.Missing == nil || f.Name == netkit })
	begin(len(missing), "MISSING FEATURE\tNEEDS\tREASON")
	for _, f := range missing {
		fmt.Fprintf(tab, "%s\t%s\t%v\n", f.Name, f.Needs, f.Missing)
	}
	return tab.Flush()
}
