// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

func (c *config) counters() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show packets by outcome, and drops by reason",
		Long: `Show what the programs did with packets, and why they dropped any, summed over all CPUs.
docs/datapath.md describes each counter.`,
	}
	return listing(cmd, func(format string) error {
		counters, err := read(c, (*datapath.Datapath).Counters)
		if err != nil {
			return err
		}
		return c.printCounters(counters, format)
	})
}

// counterJSON is a counter as counters -o json prints it.
type counterJSON struct {
	Name    string `json:"name"`
	Drop    bool   `json:"drop"`
	Packets uint64 `json:"packets"`
}

func (c *config) printCounters(counters []datapath.Counter, format string) error {
	list := []counterJSON{}
	var rows [][]string
	for _, counter := range counters {
		list = append(list, counterJSON{counter.Name, counter.Drop, counter.Packets})
		rows = append(rows, []string{counter.Name, strconv.FormatBool(counter.Drop), strconv.FormatUint(counter.Packets, 10)})
	}
	if format == "json" {
		return printJSON(c.stdout, struct {
			Schema   int           `json:"schema"`
			Counters []counterJSON `json:"counters"`
		}{schema, list})
	}
	return printTable(c.stdout, []string{"COUNTER", "DROP", "PACKETS"}, rows)
}
