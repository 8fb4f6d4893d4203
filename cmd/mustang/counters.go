// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

func (c *config) counters() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show what the programs did with packets, and why they dropped any",
		Args:  arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(format); err != nil {
				return err
			}
			if err := requireRoot(cmd); err != nil {
				return err
			}
			d, err := c.openExisting()
			if err != nil {
				return err
			}
			var counters []datapath.Counter
			if d != nil {
				defer d.Close()
				if counters, err = d.Counters(); err != nil {
					return err
				}
			}
			return c.printCounters(counters, format)
		},
	}
	addOutput(cmd, &format)
	return cmd
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
