// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"

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
	other := map[string]string{"unload": "mustang reset", "reset": "mustang datapath unload"}[name]
	return &cobra.Command{
		Use:   name,
		Short: "Detach all programs, and delete all services and endpoints",
		Long: `Detach all programs from pods, uplinks and control groups, and delete all maps with the
services, endpoints and connections in them, also those of another version of Mustang.
Connections through a service end. Labs are not touched. ` + other + ` does the same.`,
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
		Long: `Bring the maps of an earlier version of Mustang to the layout of this one, and replace the
programs, while packets flow: services, endpoints and connections stay. The same command
again completes one that was killed. mustang status says whether it is needed.`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			change, err := datapath.Upgrade(cmd.Context(), datapath.Options{Root: c.BPFRoot})
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("nothing to upgrade: %w", err)
			}
			if err == nil {
				_, err = fmt.Fprintf(c.Stdout, "%s: layout %d, %s\n", c.BPFRoot, objects.LayoutVersion, change)
			}
			return err
		},
	}
}
