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

// OnDatapath calls a function that changes the node's datapath, which it creates if necessary. First it completes the
// work of killed processes.
func (c *Config) OnDatapath(ctx context.Context, do func(*datapath.Datapath) error) error {
	d, err := datapath.Open(ctx, datapath.Options{Root: c.BPFRoot, Sizes: objects.Sizes{Connections: c.Connections}})
	if err != nil {
		return err
	}
	defer d.Close()
	return c.change(ctx, d, do)
}

// OnExisting is like OnDatapath, but returns the error none if the datapath does not exist.
func (c *Config) OnExisting(ctx context.Context, none error, do func(*datapath.Datapath) error) error {
	return c.Existing(none, func(d *datapath.Datapath) error { return c.change(ctx, d, do) })
}

// change recovers a datapath, prints the warnings about its connection table, and calls a function that changes it.
func (c *Config) change(ctx context.Context, d *datapath.Datapath, do func(*datapath.Datapath) error) error {
	err := d.Recover(ctx)
	warnings, warnErr := d.ConnectionTable().Warnings(c.Connections)
	if len(warnings) > 0 {
		fmt.Fprintf(c.Stderr, "mustang: note: %s\n", strings.Join(warnings, "; "))
	}
	if err := errors.Join(err, warnErr); err != nil {
		return err
	}
	return do(d)
}

// Read reads something from the node's datapath. Without a datapath it returns the zero value and prints a note.
func Read[T any](c *Config, from func(*datapath.Datapath) (T, error)) (value T, err error) {
	none := errors.New("maps do not exist yet")
	err = c.Existing(none, func(d *datapath.Datapath) (err error) {
		value, err = from(d)
		return err
	})
	if errors.Is(err, none) {
		fmt.Fprintf(c.Stderr, "mustang: %s: %v\n", c.BPFRoot, none)
		err = nil
	}
	return value, err
}

// WithExisting calls a function that only reads the node's datapath, if it exists.
func (c *Config) WithExisting(do func(*datapath.Datapath) error) error { return c.Existing(nil, do) }

// Existing calls a function that only reads the node's datapath. It returns the error none if that does not exist.
func (c *Config) Existing(none error, do func(*datapath.Datapath) error) error {
	d, err := datapath.OpenExisting(datapath.Options{Root: c.BPFRoot})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return none
	case err != nil:
		return err
	}
	defer d.Close()
	return do(d)
}
