// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

// listing makes cmd a command that reads: with -o table or json, as root, and
// without arguments. It calls show with the format.
func listing(cmd *cobra.Command, show func(format string) error) *cobra.Command {
	var format string
	cmd.Args = arguments(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(format); err != nil {
			return err
		}
		if err := requireRoot(cmd); err != nil {
			return err
		}
		return show(format)
	}
	addOutput(cmd, &format)
	return cmd
}

// read reads something of the node's datapath: nothing if there is none yet.
func read[T any](c *config, from func(*datapath.Datapath) ([]T, error)) (list []T, err error) {
	d, err := c.openExisting()
	if err != nil || d == nil {
		return nil, err
	}
	defer d.Close()
	return from(d)
}
