// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/suites"
	"mustang/internal/explain"
	"mustang/internal/vm"
)

func (c *config) explain() *cobra.Command {
	var o explain.Options
	var out explainOutput
	cmd := &cobra.Command{
		Use:   "explain [SUITE] ROW",
		Short: "Show the steps of a row's packets, and the time of each",
		Long: `Build the network of a row of mustang bench (default suite: pod-links), and exchange requests
and responses of one byte over it. Show what each packet crosses, in order:
sockets, devices, softirqs, route look-ups, netfilter hooks, BPF programs, and switches
between threads, with the mean time of each step. "mustang bench --list SUITE" has the rows.

The steps are traced, at tracepoints of the kernel and before and after the functions and
programs of hooks. The cost of recording is measured and subtracted. The transaction
without tracing and that with it are printed beside the sum.

With --vm this happens in a virtual machine with Debian's newest 6.12 kernel, which has all
link modes. Steps then have instructions in place of nanoseconds.`,
		Example: `  mustang explain veth/pod-ip
  mustang explain macvlan/pod-ip --against veth/pod-ip
  mustang explain --vm netkit/pod-ip --against veth/pod-ip
  mustang explain latency veth -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 {
				return cli.Usage(fmt.Errorf("ROW is missing: want %s", cmd.UseLine()))
			}
			return cli.Arguments("[SUITE]", "[ROW]")(cmd, args)
		},
		PreRunE: cli.Check(func(args []string) error {
			o.Suite = suites.Default
			if len(args) == 2 {
				o.Suite = args[0]
			}
			if o.Row = out.against; o.Row != "" {
				if err := o.Validate(); err != nil {
					return err
				}
			}
			o.Row = args[len(args)-1]
			return o.Validate()
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runExplain(cmd, o, out) },
	}
	f := cmd.Flags()
	cli.AddOutput(cmd, &out.format)
	f.IntVar(&o.Count, "count", explain.DefaultCount, fmt.Sprintf("transactions that are traced, %d to %d",
		explain.MinCount, explain.MaxCount))
	f.StringVar(&out.against, "against", "", "another row of the suite; print the difference of each step")
	f.BoolVar(&out.guest, "vm", false, "run in a virtual machine with a stock kernel, and count instructions")
	f.BoolVar(&o.Instructions, "instructions", false,
		"count instructions, on a machine with a clock that counts them (set by --vm)")
	_ = f.MarkHidden("instructions")
	f.StringVar(&out.svg, "svg", "", "file that gets a drawing (SVG)")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return cli.Words(func() []string { return append(rowIDs(), suites.Names()...) })(cmd, nil, begun)
		case 1:
			return cli.Words(func() []string { return rowIDs(args[0]) })(cmd, nil, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cli.CompleteFlag(cmd, "against", func() []string {
		args := cmd.Flags().Args()
		return rowIDs(args[:max(len(args)-1, 0)]...)
	})
	return cmd
}

type explainOutput struct {
	format, against, svg string
	guest                bool
}

type explained interface {
	WriteText(io.Writer) error
	WriteSVG(io.Writer) error
}

func (c *config) runExplain(cmd *cobra.Command, o explain.Options, out explainOutput) (err error) {
	if o.Store, err = c.rootStore(cmd); err != nil {
		return err
	}
	if cmd.Flags().Changed("svg") { // before the work: the path may be wrong
		if _, err := os.Stat(filepath.Dir(out.svg) + "/."); err != nil {
			return err
		}
		if info, err := os.Stat(out.svg); out.svg == "" || err == nil && info.IsDir() {
			return cli.Usage(fmt.Errorf("--svg %q: not the path of a file", out.svg))
		}
	}
	run := c.explainHere
	if out.guest {
		run = c.explainInGuest
	}
	found, err := run(cmd.Context(), o, out.against)
	switch {
	case cmd.Context().Err() != nil:
		return bench.ErrInterrupted
	case err != nil:
		return err
	case out.svg != "":
		var svg bytes.Buffer
		if err := found.WriteSVG(&svg); err != nil {
			return err
		}
		if err := os.WriteFile(out.svg, svg.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if out.format == "json" {
		return cli.PrintJSON(c.Stdout, found)
	}
	return found.WriteText(c.Stdout)
}

func (c *config) explainHere(ctx context.Context, o explain.Options, against string) (explained, error) {
	rows := []explain.Options{o}
	if o.Row = against; against != "" {
		rows = append(rows, o)
	}
	found, err := explain.Run(ctx, rows...)
	switch {
	case err != nil:
		return nil, err
	case against != "":
		return explain.Compare(found[0], found[1]), nil
	}
	return found[0], nil
}

func (c *config) explainInGuest(ctx context.Context, o explain.Options, against string) (explained, error) {
	command := []string{"explain", o.Suite, o.Row, "--count", strconv.Itoa(o.Count), "--instructions", "-o", "json"}
	if against != "" {
		command = append(command, "--against", against)
	}
	var output bytes.Buffer
	err := c.inGuest(ctx, vm.Options{Command: command, Modules: []string{"br_netfilter"}, Stdout: &output})
	if err != nil {
		return nil, err
	}
	var found explained = &explain.Explanation{}
	if against != "" {
		found = &explain.Comparison{}
	}
	return found, json.Unmarshal(output.Bytes(), found)
}
