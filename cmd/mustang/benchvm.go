// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench"
	"mustang/internal/bench/host"
	"mustang/internal/result"
	"mustang/internal/vm"
)

const guestGrace = 30 * time.Second // limits the time of bench in a guest to end after Ctrl-C

const guestMemory = 3072 // a guest's memory in MiB, enough for all labs of a suite at once

// benchVM runs bench with the same arguments in a guest. The run's directory is below out on this machine.
func (c *config) benchVM(cmd *cobra.Command, o bench.Options, out string) error {
	o.Count = result.ClockInstructions
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	if err := cli.RequireRoot(cmd); err != nil {
		return err
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	if err := result.SudoUser(c.Getenv).MakeDir(out); err != nil {
		return err
	}
	err = c.inGuest(cmd.Context(), vm.Options{
		Command: slices.Concat([]string{"bench"}, guestArguments(cmd), []string{"--count", "instructions", "--out", out}),
		Modules: []string{"br_netfilter", "ip_vs", "ip_vs_rr"}, // as nodes of container clusters have them
		Share:   out,
		Stdout:  c.Stdout,
	})
	if cmd.Context().Err() != nil {
		return bench.ErrInterrupted // the result file has all samples so far
	}
	return err
}

// guestArguments returns the arguments of cmd without flags that concern this machine.
func guestArguments(cmd *cobra.Command) []string {
	args := cmd.Flags().Args()
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "vm", "out", "count", "state-dir", "bpf-root":
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

func (c *config) inGuest(ctx context.Context, o vm.Options) error {
	if err := vm.CheckTools(false); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if o.Kernel, err = vm.FetchKernel(ctx, ""); err != nil {
		return err
	}
	fmt.Fprintf(c.Stderr, "guest: %s, release %s\n", o.Kernel, o.Kernel.Release)
	o.Command, o.Env = append([]string{exe}, o.Command...), append(os.Environ(), host.EnvGuestKernel+"="+o.Kernel.String())
	o.MemoryMB, o.CountInstructions, o.Grace, o.Stderr = guestMemory, true, guestGrace, c.Stderr
	switch code, err := vm.Run(ctx, o); {
	case err != nil:
		return err
	case code == exitMisuse:
		return cli.Usage(fmt.Errorf("%s in the guest refused its arguments", o.Command[1]))
	case code != exitDone:
		return fmt.Errorf("%s in the guest ended with exit code %d", o.Command[1], code)
	}
	return nil
}
