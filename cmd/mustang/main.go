// SPDX-License-Identifier: Apache-2.0

// Command mustang connects pods, gives them cluster IPs by eBPF, and measures
// which way of doing it is the fastest on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/lab"
	"mustang/internal/vm"
)

// signalGrace is how long after a signal another one is taken for the same.
const signalGrace = 500 * time.Millisecond

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
