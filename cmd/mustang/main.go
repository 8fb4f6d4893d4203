// SPDX-License-Identifier: Apache-2.0

// Command mustang is the command line of the container network: pods, services, policies, labs, benchmarks.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/version"
	"mustang/internal/vm"
)

const signalGrace = 500 * time.Millisecond // how long after a signal another one is taken for the same

func main() {
	if vm.IsInit() { // we are the first process of a guest
		fmt.Fprintln(os.Stderr, vm.Init(lab.ConfigureGuest))
		return
	}
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // by nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	// A second signal ends the program at once, and the next command clears up. timeout(1) sends two together.
	context.AfterFunc(ctx, func() {
		time.Sleep(signalGrace)
		stop()
	})
	env := cli.Environment{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		Terminal: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb",
	}
	os.Exit(run(ctx, env, os.Args[1:]))
}

func (c *config) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.Arguments(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(c.Stdout, "mustang %s %s %s/%s\n", version.Program(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
}

func manual() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages of all commands to a directory",
		Hidden: true,
		Args:   cli.Arguments("DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.InitDefaultCompletionCmd()
			root.DisableAutoGenTag = true             // the pages of one source are the same each time
			indented := regexp.MustCompile("(?m)^  ") // Markdown leaves such lines as they are
			eachCommand(root, func(cmd *cobra.Command) { cmd.Long = indented.ReplaceAllString(cmd.Long, "      ") })
			header := doc.GenManHeader{Section: "1", Source: "mustang " + version.Program(), Manual: "Mustang"}
			return doc.GenManTree(root, &header, filepath.Clean(args[0]))
		},
	}
}

func eachCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		eachCommand(sub, do)
	}
}
