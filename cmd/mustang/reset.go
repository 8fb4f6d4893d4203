// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"mustang/internal/datapath/objects"
)

func (c *config) reset() *cobra.Command {
	return &cobra.Command{
		Use:   "reset",
		Short: "Detach all programs, and delete all services and endpoints",
		Long: `Detach all programs from all pods, and delete all maps with the services, endpoints and
connections in them. Connections through a service end. Labs are not touched.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := requireRoot(cmd); err != nil {
				return err
			}
			return objects.Remove(cmd.Context(), c.bpfRoot)
		},
	}
}
