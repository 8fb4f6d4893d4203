// SPDX-License-Identifier: Apache-2.0

// Package cli has the shared code of mustang's commands: input, the node's datapath, usage errors, and output.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"

	"mustang/internal/datapath/objects"
	"mustang/internal/lock"
)

// EnvBPFRoot is the environment variable with the default of --bpf-root.
const EnvBPFRoot = "MUSTANG_BPF_ROOT"

// Environment is the program's environment.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Terminal       bool // whether Stderr is a terminal
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
