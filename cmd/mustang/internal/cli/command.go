// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mustang/internal/netns"
	"mustang/internal/suggest"
)

// UsageError says that the command line makes no sense.
type UsageError struct{ err error }

func (u *UsageError) Error() string { return u.err.Error() }

func (u *UsageError) Unwrap() error { return u.err }

// Usage returns an error as a UsageError, and nil as nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// Arguments accepts arguments with these names. A name in brackets is optional.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n > len(names):
			return Usage(fmt.Errorf("unexpected argument %q: want %s", args[len(names)], cmd.UseLine()))
		case n < len(names) && !strings.HasPrefix(names[n], "["):
			return Usage(fmt.Errorf("%s is missing: want %s", names[n], cmd.UseLine()))
		}
		return nil
	}
}

// Group returns a command that only holds others, and prints its help. A word that names none of them is a misuse.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: KnownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// KnownCommand refuses a word that names no command, and tells which there are.
func KnownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, known := range cmd.Commands() {
		if known.IsAvailableCommand() {
			names = append(names, known.Name())
		}
	}
	return Usage(fmt.Errorf("unknown command %q for %q: want %s%s", args[0], cmd.CommandPath(), strings.Join(names, ", "), suggest.Text(args[0], names)))
}

// Check returns what a command does before all else: it refuses arguments and flags that make no sense.
func Check(check func(args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error { return Usage(check(args)) }
}

// AsRoot returns what a command does that needs root.
func AsRoot(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := RequireRoot(cmd); err != nil {
			return err
		}
		return run(cmd.Context(), args)
	}
}

// RequireRoot refuses users who lack the rights for network namespaces.
func RequireRoot(cmd *cobra.Command) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root", cmd.CommandPath())
	}
	return nil
}

// OpenNamespace opens a network namespace by its path, or by its name in netns.Directory. Without one it is the current one.
func OpenNamespace(name string) (*netns.Namespace, error) {
	if name == "" {
		return netns.Current()
	}
	if !strings.Contains(name, "/") {
		name = filepath.Join(netns.Directory, name)
	}
	return netns.Open(name)
}

// WithNamespace calls a function with the namespace that OpenNamespace opens.
func WithNamespace(name string, do func(*netns.Namespace) error) error {
	ns, err := OpenNamespace(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns)
}
