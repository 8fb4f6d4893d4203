// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/status"
)

func (c commands) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show programs, attachments, maps, drops and faults",
		Long: `Show the programs with the number of their attachments, the fill and memory of maps, and
packets that were dropped, by reason. Each fault has a line that says what helps. Faults: missing
attachments; devices that are gone; remains of killed processes; maps of another layout or
nearly full; missing kernel features; settings of the host that drop packets of pods:
an nftables or iptables policy, bridge-nf-call-iptables, rp_filter.

It changes nothing and waits for no other command. Exit code 1 if a fault is found.`,
		Example: "  mustang status\n  mustang status -o json",
	}
	return cli.Listing(cmd, func(format string) error {
		r, err := status.Read(cmd.Context(), c.BPFRoot)
		if err != nil {
			return err
		}
		write := status.WriteTable
		if format == "json" {
			write = status.WriteJSON
		}
		if err := write(c.Stdout, r); err != nil {
			return err
		}
		if n := len(r.Findings); n > 0 {
			return fmt.Errorf("amiss: %d", n)
		}
		return nil
	})
}
