// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/status"
)

func (c commands) counters() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "Show packets by outcome, and drops by reason",
		Long: `Show what the programs did with packets, and why they dropped any, summed over all CPUs,
since the maps were created. The table leaves out counters of 0 unless --all is given; -o json has all.`,
	}
	cmd.Flags().BoolVar(&all, "all", false, "show counters of 0 too")
	return cli.Listing(cmd, func(format string) error {
		counters, err := cli.Read(c.Config, (*datapath.Datapath).Counters)
		if err != nil {
			return err
		}
		return status.WriteCounters(c.Stdout, format, counters, all)
	})
}
