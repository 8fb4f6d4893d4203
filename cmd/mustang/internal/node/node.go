// SPDX-License-Identifier: Apache-2.0

// Package node implements the commands on the services, the datapath, the agent and the state of a node.
package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
)

type commands struct{ *cli.Config }

// Commands returns the commands svc, ep, uplink, socket, conntrack, status, counters, datapath and reset.
func Commands(config *cli.Config) []*cobra.Command {
	c := commands{config}
	return []*cobra.Command{c.svc(), c.ep(), c.uplink(), c.socket(), c.conntrack(), c.status(), c.counters(), c.datapath(),
		c.unload("reset")}
}

func (c commands) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show programs, attachments, maps, drops and faults",
		Long: `Show the programs with the number of their attachments, the fill and memory of maps, and
packets that were dropped, by reason. Each fault has a line that says what helps: missing
attachments, full maps, or settings of the host that drop packets of pods, for example.

It changes nothing and waits for no other command. Exit code 1 if a fault is found.`,
		Example: "  mustang status\n  mustang status -o json",
	}
	return cli.Listing(cmd, func(format string) error {
		r, err := readStatus(cmd.Context(), c.BPFRoot)
		if err != nil {
			return err
		}
		if format == "json" {
			err = json.MarshalEncode(jsontext.NewEncoder(c.Stdout, jsontext.WithIndent("  ")), r)
		} else {
			err = writeStatus(c.Stdout, r)
		}
		if n := len(r.Findings); err == nil && n > 0 {
			err = fmt.Errorf("amiss: %d", n)
		}
		return err
	})
}

func (c commands) counters() *cobra.Command {
	var all bool
	var watch time.Duration
	var tables int
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show packets by outcome, and drops by reason",
		Long: `Show what the programs did with packets, and why they dropped any, summed over all CPUs,
since the maps were created. The table leaves out counters of 0 unless --all is given; -o json has all.

With --watch it shows rates of each interval: of counters that changed, of pods' devices, and of
connections and translated packets of services.`,
		Example: "  mustang counters\n  mustang counters --watch\n  mustang counters --watch=10s --tables 6 -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.Flags().Changed("watch") {
				return cli.Usage(fmt.Errorf("unexpected argument %q: want --watch=%[1]s", args[0]))
			}
			return cli.Arguments()(cmd, args)
		},
	}
	cmd.Flags().DurationVar(&watch, "watch", 0, "show rates, over intervals of this length (1s if none is given)")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	cmd.Flags().IntVar(&tables, "tables", 0, "end after so many intervals of --watch (default: at Ctrl-C)")
	cmd.Flags().BoolVar(&all, "all", false, "show counters of 0 too")
	return cli.Listing(cmd, func(format string) error {
		if cmd.Flags().Changed("watch") {
			return watcher{c, format, all}.run(cmd.Context(), watch, tables)
		}
		counters, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]flows.Counter, error) {
			return d.Flows().Counters()
		})
		if err != nil {
			return err
		}
		if format != "json" && !all {
			counters = slices.DeleteFunc(counters, func(c flows.Counter) bool { return c.Packets == 0 })
		}
		return cli.PrintList(c.Stdout, format, counters, cli.Table[flows.Counter]{
			Key:    "counters",
			Header: []string{"COUNTER", "DROP", "PACKETS", "MEANING"},
			Row:    func(c flows.Counter) []any { return []any{c.Name, c.Drop, c.Packets, c.Meaning} },
		})
	})
}
