// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mustang/internal/bench"
	"mustang/internal/vm"
)

// envGuestKernel tells bench in a guest what kernel package the guest runs.
const envGuestKernel = "MUSTANG_GUEST_KERNEL"

// guestGrace is how long bench in a guest may take to end after Ctrl-C.
const guestGrace = 30 * time.Second

// guestMemory is a guest's memory in MiB: room for all networks of a suite at
// once.
const guestMemory = 3072

// benchInGuest runs bench with these arguments in a guest that counts
// instructions. The result file grows in out, a directory of this machine, which
// is made if it is not there; what bench prints is printed here.
func (c *config) benchInGuest(ctx context.Context, args []string, out string) error {
	if err := vm.CheckTools(); err != nil {
		return err
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	if err := os.MkdirAll(out, 0o700); err != nil {
		return fmt.Errorf("output directory: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	kernel, err := vm.FetchKernel(ctx, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stderr, "guest: %s, release %s\n", kernel, kernel.Release)
	code, err := vm.Run(ctx, vm.Options{
		Kernel:            kernel,
		Command:           slices.Concat([]string{exe, "bench"}, args, []string{"--count", "instructions", "--out", out}),
		Env:               append(os.Environ(), envGuestKernel+"="+kernel.String()),
		Modules:           []string{"br_netfilter"}, // as nodes of container clusters have it
		Share:             out,
		MemoryMB:          guestMemory,
		CountInstructions: true,
		Grace:             guestGrace,
		Stdout:            c.stdout,
		Stderr:            c.stderr,
	})
	switch {
	case ctx.Err() != nil:
		return bench.ErrInterrupted // the results are there until the last sample
	case err != nil:
		return err
	case code == exitMisuse:
		return usage(errors.New("bench in the guest refused its arguments"))
	case code != exitDone:
		return fmt.Errorf("bench in the guest ended with exit code %d", code)
	}
	return nil
}
