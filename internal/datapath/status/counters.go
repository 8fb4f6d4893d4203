// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"mustang/internal/datapath/flows"
)

// counterJSON is a counter as WriteCounters writes it.
type counterJSON struct {
	Name    string `json:"name"`
	Drop    bool   `json:"drop"`
	Packets uint64 `json:"packets"`
}

// WriteCounters writes counters in a format, table or json. The table leaves out those of 0 unless it is to have all.
func WriteCounters(w io.Writer, format string, counters []flows.Counter, all bool) error {
	if format == "json" {
		list := make([]counterJSON, 0, len(counters))
		for _, c := range counters {
			list = append(list, counterJSON{c.Name, c.Drop, c.Packets})
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			Schema   int           `json:"schema"`
			Counters []counterJSON `json:"counters"`
		}{schema, list})
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
