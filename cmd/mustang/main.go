// SPDX-License-Identifier: Apache-2.0

// Command mustang is the command line of the container network: pods, services, policies, labs, benchmarks.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/cmd/mustang/internal/traffic"
	"mustang/internal/bench/clusterbench"
	"mustang/internal/kube"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/tun"
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

func run(ctx context.Context, env cli.Environment, args []string) int {
	root := commandTree(env)
	root.SetArgs(args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	refuseUnknown(root)
	err := refuseRepeated(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitDone
	}
	text := err.Error()
	if ctx.Err() != nil { // by a signal
		text = strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
	}
	lines := cli.Convert(strings.Split(text, "\n"), cli.Printable) // of several errors, or of a file's name
	fmt.Fprintf(env.Stderr, "mustang: %s\n", strings.Join(lines, "\n"))
	switch {
	case errors.As(err, new(*cli.UsageError)), errors.As(err, new(*lab.OptionError)):
		return exitMisuse
	case errors.As(err, new(*worseError)):
		return exitWorse
	}
	return exitFailed
}

func (c *config) runHere(ctx context.Context, stdout, stderr io.Writer, args ...string) int {
	env := c.Environment
	env.Stdin, env.Stdout, env.Stderr, env.Terminal = strings.NewReader(""), stdout, stderr, false
	return run(ctx, env, append(args, "--state-dir", c.stateDir))
}

func commandTree(env cli.Environment) *cobra.Command {
	c := &config{Config: &cli.Config{Environment: env}}
	root := cli.Group("mustang", "Container networks on Linux: connect pods, give them cluster IPs by eBPF, measure them",
		c.bench(), c.advise(), c.explain(), c.report(), c.compare(),
		cli.Group("lab", "Labs: whole networks in namespaces, for experiments", c.labUp(), c.labList(), c.labExec(),
			c.labDown()),
		c.links(), c.probe(), c.tun(),
		cli.Group("cni", "Install or uninstall the CNI plugin for container runtimes", c.cniInstall(), c.cniStatus(),
			c.cniUninstall()),
		c.agent(), node.Sysdump(c.Config, c.runHere), manual(), c.version())
	root.AddCommand(append(c.hidden(), c.adviseLabs())...)
	root.AddCommand(node.Commands(c.Config)...)
	root.AddCommand(traffic.Commands(c.Config)...)
	root.Long = `Mustang connects pods on Linux, gives them cluster IPs by eBPF, and measures which
way of doing so is the fastest on this machine.

Exit codes: 0 done, 1 failed, 2 misused, 3 worse than the threshold of compare.`
	root.Example = "  mustang bench"
	for _, group := range [][2]string{
		{"Measure:", "bench advise explain report compare lab"},
		{"Run:", "agent cni ep svc policy uplink socket datapath reset tun"},
		{"Look:", "status monitor counters conntrack links metrics probe sysdump"},
	} {
		root.AddGroup(&cobra.Group{ID: group[0], Title: group[0]})
		for _, cmd := range root.Commands() {
			if slices.Contains(strings.Fields(group[1]), cmd.Name()) {
				cmd.GroupID = group[0]
			}
		}
	}
	root.Version = version.Program()
	root.SetVersionTemplate("mustang {{.Version}}\n")
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.Check(); err != nil {
			return err
		}
		cmd.SetContext(c.WithWait(cmd.Context()))
		// Each command clears up after a bench that was killed. Only commands on labs report what cannot be cleared.
		if os.Geteuid() == 0 && !cmd.Hidden {
			c.reapErr = c.store().Reap()
		}
		return nil
	}
	root.SetFlagErrorFunc(flagError)
	c.AddFlags(root.PersistentFlags())
	root.PersistentFlags().StringVar(&c.stateDir, "state-dir", cmp.Or(env.Getenv(envStateDir), lab.DefaultDir),
		"directory that labs are recorded in ($"+envStateDir+")")
	c.Finish(root)
	return root
}

func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				of, rest, err := root.Find(args)
				return errors.Join(err, cli.KnownCommand(of, rest))
			}
		case "completion":
			cmd.Args, cmd.RunE = cli.KnownCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = cli.Arguments()
			}
		}
	}
}

func (c *config) hidden() []*cobra.Command {
	hide := func(use, short string, run func(ctx context.Context, args []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
		}
	}
	return []*cobra.Command{
		hide(load.Command, "Send or receive load, with commands on stdin", func(ctx context.Context, args []string) error {
			if err := load.DisablePreemption(); err != nil {
				return err
			}
			return worker.Main(ctx, args, c.Stdin, c.Stdout)
		}),
		hide(clusterbench.ExecCommand, "Run a command in a pod", func(ctx context.Context, args []string) error {
			return clusterbench.Exec(ctx, args, kube.ExecStreams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr})
		}),
		hide(clusterbench.PodCommand, "Wait for load agents", func(ctx context.Context, args []string) error {
			return clusterbench.Main(ctx, args, c.Stdout)
		}),
		hide(tun.RelayCommand, "Carry packets between two devices", func(ctx context.Context, args []string) error {
			return tun.Relay(ctx, args, c.Stdout)
		}),
		hide(lab.GuestCommand, "Boot a virtual machine with an agent", func(ctx context.Context, args []string) error {
			return lab.RunGuest(ctx, args, vm.Options{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr})
		}),
		hide(lab.PauseCommand, "Wait until the end", func(ctx context.Context, _ []string) error {
			lab.Pause(ctx)
			return nil
		}),
	}
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
