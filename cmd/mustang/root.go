// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/cmd/mustang/internal/traffic"
	"mustang/internal/bench/clusterbench"
	"mustang/internal/kube"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/worker"
	"mustang/internal/suggest"
	"mustang/internal/tun"
	"mustang/internal/version"
	"mustang/internal/vm"
)

const exitDone, exitFailed, exitMisuse, exitWorse = 0, 1, 2, 3

const envStateDir = "MUSTANG_STATE_DIR"

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

type config struct {
	*cli.Config
	stateDir string
	reapErr  error // why the labs of dead processes could not be cleared
}

func (c *config) store() lab.Store { return lab.Store{Dir: c.stateDir} }

func commandTree(env cli.Environment) *cobra.Command {
	c := &config{Config: &cli.Config{Environment: env}}
	root := cli.Group("mustang", "Container networks on Linux: connect pods, give them cluster IPs by eBPF, measure them",
		c.bench(), c.explain(), c.report(), c.compare(),
		cli.Group("lab", "Labs: whole networks in namespaces, for experiments", c.labUp(), c.labList(), c.labExec(),
			c.labDown()),
		c.links(), c.probe(), c.tun(),
		cli.Group("cni", "Install or uninstall the CNI plugin for container runtimes", c.cniInstall(), c.cniUninstall()),
		c.agent(), node.Sysdump(c.Config, c.runHere), manual(), c.version())
	root.AddCommand(c.hidden()...)
	root.AddCommand(node.Commands(c.Config)...)
	root.AddCommand(traffic.Commands(c.Config)...)
	root.Long = `Mustang connects pods on Linux, gives them cluster IPs by eBPF, and measures which
way of doing so is the fastest on this machine.

Exit codes: 0 done, 1 failed, 2 misused, 3 worse than the threshold of compare.`
	root.Example = "  mustang bench"
	for _, group := range [][2]string{
		{"Measure:", "bench explain report compare lab"},
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
	cli.Finish(root)
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

var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration such as 10ms or 2m",
	"int": "a whole number", "int64": "a whole number", "float64": "a number",
	"uint": "a whole number from 0", "uint8": "a whole number from 0 to 255", "uint16": "a whole number from 0 to 65535",
	"uint32": "a whole number from 0 to 4294967295", "uint64": "a whole number from 0",
	"uintSlice": "whole numbers from 0",
}

// refuseRepeated returns an error if a flag that takes one value is given twice. The agent's flags may repeat: the
// chart's extraFlags override its own flags.
func refuseRepeated(root *cobra.Command, args []string) (twice error) {
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.DisableFlagParsing || cmd.CommandPath() == "mustang agent" {
		return nil
	}
	cmd.InitDefaultHelpFlag() // also adds the flags of the parent commands
	given := map[string]bool{}
	_ = cmd.Flags().ParseAll(rest, func(flag *pflag.Flag, _ string) error {
		_, list := flag.Value.(pflag.SliceValue)
		if parsed, ok := flag.Value.(*cli.Parsed); ok {
			list = parsed.Repeated
		}
		if given[flag.Name] && !list && flag.Value.Type() != "stringToString" && flag.Name != "help" {
			twice = cli.Usage(fmt.Errorf("--%s is given twice, and takes one value", flag.Name))
		}
		given[flag.Name] = true
		return twice
	})
	return twice // the command reports other errors
}

func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
}

// flagError names what a flag takes, instead of the parser's error. For an unknown flag it suggests a known one.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		name := flagName(invalid.GetFlag())
		want := wanted[invalid.GetFlag().Value.Type()]
		if parsed, ok := invalid.GetFlag().Value.(*cli.Parsed); ok {
			want = parsed.Want
		}
		switch what := invalid.Unwrap(); {
		case want != "":
			err = fmt.Errorf("%s %q: want %s", name, invalid.GetValue(), want)
		case strings.Contains(what.Error(), strconv.Quote(invalid.GetValue())):
			err = fmt.Errorf("%s: %w", name, what)
		default:
			err = fmt.Errorf("%s %q: %w", name, invalid.GetValue(), what)
		}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		var known []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden {
				known = append(known, "--"+flag.Name)
			}
		})
		err = fmt.Errorf("%w%s", err, suggest.Text("--"+unknown.GetSpecifiedName(), known))
	}
	return cli.Usage(err)
}
