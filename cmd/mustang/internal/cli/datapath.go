// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
)

// OnDatapath calls a function with the node's datapath, which it creates if necessary. First it completes the work of
// killed processes.
func (c *Config) OnDatapath(ctx context.Context, do func(*datapath.Datapath) error) error {
	d, err := datapath.Open(ctx, datapath.Options{Root: c.BPFRoot, Sizes: objects.Sizes{Connections: c.Connections}})
	if err != nil {
		return err
	}
	return c.change(ctx, d, do)
}

// OnExisting is like OnDatapath, but returns the error none if the datapath does not exist.
func (c *Config) OnExisting(ctx context.Context, none error, do func(*datapath.Datapath) error) error {
	d, err := c.openExisting()
	if err != nil {
		return err
	}
	if d == nil {
		return none
	}
	return c.change(ctx, d, do)
}

// change calls a function that changes a datapath, and closes the datapath.
func (c *Config) change(ctx context.Context, d *datapath.Datapath, do func(*datapath.Datapath) error) error {
	defer d.Close()
	if err := errors.Join(d.Recover(ctx), c.warn(d)); err != nil {
		return err
	}
	return do(d)
}

// warn prints the warnings about the connection table for a command that changes something.
func (c *Config) warn(d *datapath.Datapath) error {
	warnings, err := d.ConnectionTable().Warnings(c.Connections)
	if len(warnings) > 0 {
		fmt.Fprintf(c.Stderr, "mustang: note: %s\n", strings.Join(warnings, "; "))
	}
	return err
}

// Read reads something from the node's datapath. Without a datapath it returns the zero value and prints a note.
func Read[T any](c *Config, from func(*datapath.Datapath) (T, error)) (value T, err error) {
	d, err := c.openExisting()
	if err != nil {
		return value, err
	}
	if d == nil {
		fmt.Fprintf(c.Stderr, "mustang: %s: maps do not exist yet\n", c.BPFRoot)
		return value, nil
	}
	defer d.Close()
	return from(d)
}

// WithExisting calls a function that only reads the node's datapath, if it exists.
func (c *Config) WithExisting(do func(*datapath.Datapath) error) error {
	d, err := c.openExisting()
	if err != nil || d == nil {
		return err
	}
	defer d.Close()
	return do(d)
}

// openExisting opens the node's datapath, or returns nil if it does not exist yet.
func (c *Config) openExisting() (*datapath.Datapath, error) {
	d, err := datapath.OpenExisting(datapath.Options{Root: c.BPFRoot})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return d, err
}
