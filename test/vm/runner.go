// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"mustang/internal/vm"
)

// Exit codes.
const (
	exitFailed = 1
	exitMisuse = 2
	exitGuest  = 125
)

// runner is a command line.
type runner struct {
	stdout, stderr io.Writer
	kernels        string
	timeout        time.Duration
	guest          vm.Options
	console        bool
	verbose        bool
	run, skipped   string
}

// modules are modules that nodes of container clusters load when they boot.
var modules = []string{"br_netfilter", "ip_vs", "ip_vs_rr"}

// command runs a command in a guest.
func (r runner) command(ctx context.Context, command []string) int {
	kernel, err := vm.FetchKernel(ctx, r.kernels)
	if err != nil {
		return r.fail(exitGuest, err)
	}
	o := r.guest
	o.Kernel, o.Command, o.Timeout, o.Grace = kernel, command, r.timeout, 5*time.Second
	o.Stdout, o.Stderr = r.stdout, r.stderr
	o.Modules = modules
	code, err := vm.Run(ctx, o)
	if err != nil {
		return r.fail(exitGuest, err)
	}
	return code
}

// fail prints an error, with the last output of the guest's console.
func (r runner) fail(code int, err error) int {
	var guest *vm.GuestError
	if errors.As(err, &guest) && guest.Console != "" && !r.console {
		fmt.Fprintf(r.stderr, "the end of the guest's console:\n%s\n", guest.Console)
	}
	fmt.Fprintln(r.stderr, "vm:", err)
	return code
}
