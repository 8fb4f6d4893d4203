// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"mustang/internal/datapath"
)

// listing makes cmd a command that lists something: with -o table or json, as root and
// without arguments. It calls show with the format.
func listing(cmd *cobra.Command, show func(format string) error) *cobra.Command {
	var format string
	cmd.Args = arguments()
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

// read lists something from the node's datapath, nothing if there is no datapath.
func read[T any](c *config, from func(*datapath.Datapath) ([]T, error)) (list []T, err error) {
	d, err := c.openExisting()
	if err != nil || d == nil {
		return nil, err
	}
	defer d.Close()
	return from(d)
}

// onExisting calls a function with the node's datapath, or returns the error none if there is no datapath. Before that it
// completes what killed processes left.
func (c *config) onExisting(ctx context.Context, none error, do func(*datapath.Datapath) error) error {
	d, err := c.openExisting()
	if err != nil {
		return err
	}
	if d == nil {
		return none
	}
	defer d.Close()
	if err := errors.Join(d.Recover(ctx), c.warn(d)); err != nil {
		return err
	}
	return do(d)
}
