// SPDX-License-Identifier: Apache-2.0

// Package cli has the shared code of mustang's commands.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/lock"
)

// EnvBPFRoot is the environment variable with the default of --bpf-root. EnvLab names the lab that a command runs in.
const (
	EnvBPFRoot = "MUSTANG_BPF_ROOT"
	EnvLab     = "MUSTANG_LAB"
)

// Environment is the program's environment.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Terminal       bool // whether Stderr is a terminal
}

// Printf prints a result on Stdout.
func (e Environment) Printf(format string, args ...any) error {
	_, err := fmt.Fprintf(e.Stdout, format, args...)
	return err
}

// Config is the environment and the flags of all commands.
type Config struct {
	Environment
	BPFRoot     string
	Connections uint32 // size of a new connection table; 0: by memory
	wait        time.Duration
}

// AddFlags adds the flags of all commands.
func (c *Config) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.BPFRoot, "bpf-root", cmp.Or(c.Getenv(EnvBPFRoot), objects.DefaultRoot),
		"directory on a bpffs that maps and programs are pinned in ($"+EnvBPFRoot+")")
	flags.DurationVar(&c.wait, "wait", 10*time.Second, // another command holds the lock for milliseconds
		"longest wait for another process that changes services or endpoints; 0 does not wait")
	flags.Uint32Var(&c.Connections, "connections", 0,
		"size of the connection table, for the command that creates the maps (default: by the machine's memory)")
}

// Check refuses flags that are invalid.
func (c *Config) Check() error {
	if c.wait < 0 {
		return Usage(fmt.Errorf("--wait %s: want 0 or more", c.wait))
	}
	if err := (objects.Sizes{Connections: c.Connections}).Validate(); err != nil {
		return Usage(fmt.Errorf("--connections: %w", err))
	}
	return nil
}

// WithWait returns a context whose waits for a lock end after --wait, and print on Stderr the process that holds it.
func (c *Config) WithWait(ctx context.Context) context.Context {
	notice := func(held *lock.Error) {
		if held.PID != os.Getpid() { // a lock held by another goroutine of the agent is not reported
			fmt.Fprintf(c.Stderr, "mustang: %v\n", held)
		}
	}
	return lock.Wait{Limit: c.wait, Notice: notice}.WithContext(ctx)
}

// OnDatapath calls a function that changes the node's datapath, which it creates if necessary. First it completes the
// work of killed processes.
func (c *Config) OnDatapath(ctx context.Context, do func(*datapath.Datapath) error) error {
	d, err := datapath.Open(ctx, datapath.Options{Root: c.BPFRoot, Sizes: objects.Sizes{Connections: c.Connections}})
	if err != nil {
		return c.inLab(err)
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
	none := errors.New("nothing is set up yet: begin with mustang ep add, svc add or policy apply")
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

// Existing calls a function that only reads the node's datapath. It returns the error none if that does not exist.
func (c *Config) Existing(none error, do func(*datapath.Datapath) error) error {
	d, err := datapath.OpenExisting(datapath.Options{Root: c.BPFRoot})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return none
	case err != nil:
		return c.inLab(err)
	}
	defer d.Close()
	return do(d)
}

// inLab says of a missing BPF file system that the lab that the command runs in lacks a datapath.
func (c *Config) inLab(err error) error {
	if name := c.Getenv(EnvLab); name != "" && errors.Is(err, objects.ErrNoBPFFS) {
		return fmt.Errorf("lab %s lacks an eBPF datapath: build it with --datapath ebpf", name)
	}
	return err
}

// StandardInput is the path that stands for standard input.
const StandardInput = "-"

// InputName names a file of the command line in messages.
func InputName(path string) string {
	if path == StandardInput {
		return "standard input"
	}
	return path
}

// ReadInput reads a file of the command line, or standard input. It waits for a terminal or a pipe until ctx ends.
func ReadInput[T any](ctx context.Context, e Environment, path string, read func(io.Reader) (T, error)) (T, error) {
	var value, none T
	err := Interruptible(ctx, func() (err error) {
		in := e.Stdin
		if path != StandardInput {
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			in = file
		}
		value, err = read(in)
		return err
	})
	if ctx.Err() != nil { // the function may set the value still
		return none, fmt.Errorf("%s: %w", InputName(path), ctx.Err())
	}
	return value, err
}

// Interruptible calls a function that needs no undo, and returns when the context ends even if the function has not.
func Interruptible(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
