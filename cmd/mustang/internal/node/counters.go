// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/status"
)

func (c commands) counters() *cobra.Command {
	var all bool
	var watch time.Duration
	var tables int
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show packets by outcome, and drops by reason",
		Long: `Show what the programs did with packets, and why they dropped any, summed over all CPUs,
since the maps were created. The table leaves out counters of 0 unless --all is given; -o json has all.

With --watch it shows the rates of each interval: the counters that changed, and what each pod sent
and received via its device. For each service it shows open connections, new connections, and packets
translated to its backends and back, without the translation at sockets.`,
		Example: "  mustang counters\n  mustang counters --watch\n  mustang counters --watch=10s --tables 6 -o json",
	}
	cmd.Flags().DurationVar(&watch, "watch", 0, "show rates, over intervals of this length (1s if none is given)")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	cmd.Flags().IntVar(&tables, "tables", 0, "end after so many intervals of --watch (default: at Ctrl-C)")
	cmd.Flags().BoolVar(&all, "all", false, "show counters of 0 too")
	cli.Listing(cmd, func(format string) error {
		if cmd.Flags().Changed("watch") {
			return watcher{c, format, all}.run(cmd.Context(), watch, tables)
		}
		counters, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]flows.Counter, error) { return d.Flows().Counters() })
		if err != nil {
			return err
		}
		return status.WriteCounters(c.Stdout, format, counters, all)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && cmd.Flags().Changed("watch") {
			if _, err := time.ParseDuration(args[0]); err == nil {
				return cli.Usage(fmt.Errorf("unexpected argument %q: want --watch=%[1]s", args[0]))
			}
		}
		return cli.Arguments()(cmd, args)
	}
	return cmd
}
