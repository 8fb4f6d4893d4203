// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/internal/datapath/dirlock"
	"mustang/internal/datapath/objects"
	"mustang/internal/lab"
	"mustang/internal/netns"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitMisuse = 2
	exitWorse  = 3
)

// Names of environment variables.
const (
	envBPFRoot  = "MUSTANG_BPF_ROOT"
	envStateDir = "MUSTANG_STATE_DIR"
)

// run runs a command line and returns the exit code.
func (e environment) run(ctx context.Context, args []string) int {
	root := e.root()
	root.SetArgs(args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(e.stderr, "mustang: %v\n", err)
	var misuse *usageError
	var option *lab.OptionError
	if errors.As(err, &misuse) || errors.As(err, &option) {
		return exitMisuse
	}
	var worse *worseError
	if errors.As(err, &worse) {
		return exitWorse
	}
	return exitFailed
}

// usageError says that the command line makes no sense.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }

func (u *usageError) Unwrap() error { return u.err }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// config is what all commands share.
type config struct {
	environment
	bpfRoot  string
	stateDir string
	wait     time.Duration // for a lock
	// connections is the size of the connection table if it is created; 0: by memory.
	connections uint32
	reapErr     error // why the labs of dead processes could not be cleared
}

func (c *config) store() lab.Store { return lab.Store{Dir: c.stateDir} }

// root returns the whole command tree.
func (e environment) root() *cobra.Command {
	c := &config{environment: e}
	root := &cobra.Command{
		Use:   "mustang",
		Short: "Container networks on Linux: connect pods, give them cluster IPs by eBPF, measure them",
		Long: `Mustang connects pods on Linux, gives them cluster IPs by eBPF, and measures which
way of doing so is the fastest on this machine.

Exit codes: 0 done, 1 failed, 2 misused, 3 worse than the threshold of compare.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          help,
		Args:          noCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if c.wait < 0 {
				return usage(fmt.Errorf("--wait %s: want 0 or more", c.wait))
			}
			if err := (objects.Sizes{Connections: c.connections}).Validate(); err != nil {
				return usage(fmt.Errorf("--connections: %w", err))
			}
			cmd.SetContext(dirlock.Wait{Limit: c.wait, Notice: c.noteWait}.WithContext(cmd.Context()))
			// Whatever runs next clears up after a bench that was killed. What can't be
			// cleared is no business of most commands; those on labs say so.
			if os.Geteuid() == 0 && !cmd.Hidden {
				c.reapErr = c.store().Reap()
			}
			return nil
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.PersistentFlags().StringVar(&c.bpfRoot, "bpf-root", cmp.Or(e.getenv(envBPFRoot), objects.DefaultRoot),
		"directory on a bpffs that maps and programs are pinned in ($"+envBPFRoot+")")
	root.PersistentFlags().StringVar(&c.stateDir, "state-dir", cmp.Or(e.getenv(envStateDir), lab.DefaultDir),
		"directory that labs are recorded in ($"+envStateDir+")")
	root.PersistentFlags().DurationVar(&c.wait, "wait", defaultWait,
		"longest wait for another process that changes services or endpoints; 0 does not wait")
	root.PersistentFlags().Uint32Var(&c.connections, "connections", 0,
		"size of the connection table, for the command that creates the maps (default: by the machine's memory)")
	root.AddCommand(c.bench(), c.explain(), c.report(), c.compare(), c.svc(), c.ep(), c.uplink(), c.conntrack(), c.status(), c.counters(), c.datapath(),
		c.unload("reset"), c.lab(),
		c.links(), c.probe(), c.tun(), c.socket(), c.cni(), c.loadAgent(), c.labRelay(), c.labGuest(), c.labPause(), c.version())
	return root
}

// defaultWait is the longest wait for a lock unless --wait says otherwise. Another command has the lock for milliseconds.
const defaultWait = 10 * time.Second

// noteWait says whom the program waits for.
func (c *config) noteWait(held *dirlock.Error) { fmt.Fprintf(c.stderr, "mustang: %v\n", held) }

// help prints a command's help, for commands that only group others.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// noCommand refuses a word that names no command of a group.
func noCommand(cmd *cobra.Command, args []string) error { return usage(cobra.NoArgs(cmd, args)) }

// arguments accepts arguments with these names. A name in brackets is optional.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n > len(names):
			return usage(fmt.Errorf("unexpected argument %q: want %s", args[len(names)], cmd.UseLine()))
		case n < len(names) && !strings.HasPrefix(names[n], "["):
			return usage(fmt.Errorf("%s is missing: want %s", names[n], cmd.UseLine()))
		}
		return nil
	}
}

// group returns a command that only holds others. A word that names none of
// them is a misuse.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, RunE: help, Args: noCommand}
	cmd.AddCommand(commands...)
	return cmd
}

// hidden returns a command that other commands start. It parses its arguments itself.
func hidden(use, short string, run func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
	}
}

// requireRoot refuses users who lack the rights for network namespaces.
func requireRoot(cmd *cobra.Command) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root", cmd.CommandPath())
	}
	return nil
}

// openNamespace opens a network namespace by its path, or by its name in netns.Directory.
func openNamespace(name string) (*netns.Namespace, error) {
	if !strings.Contains(name, "/") {
		name = filepath.Join(netns.Directory, name)
	}
	return netns.Open(name)
}
