// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
)

func (c commands) datapath() *cobra.Command {
	return cli.Group("datapath", "The eBPF programs and maps of this host", c.unload("unload"), c.upgrade())
}

// unload returns the command under a name: reset is its short form.
func (c commands) unload(name string) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: "Detach all programs, and delete all services and endpoints",
		Long: `Detach all programs from pods, uplinks and control groups, and delete all maps with the
services, endpoints and connections in them, also those of another version of Mustang.
Connections through a service end. Labs are not touched. mustang reset does the same.`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return objects.Remove(cmd.Context(), c.BPFRoot)
		},
	}
}

func (c commands) upgrade() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Bring the maps of an earlier version to this one's, and keep all connections",
		Args:  cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := datapath.Upgrade(cmd.Context(), datapath.Options{Root: c.BPFRoot})
			return err
		},
	}
}
