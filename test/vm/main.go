// SPDX-License-Identifier: Apache-2.0

// Command vm runs commands and tests as root in a virtual machine with Debian's 6.12 kernel. The guest sees this
// machine's file system read-only.
//
//	go run ./test/vm -- uname -r
//	go run ./test/vm test ./internal/podlink ./internal/datapath
//	go test -exec 'go run mustang/test/vm --' ./internal/netns
//
// A command's exit code becomes vm's; 125 means that the guest failed. The second form builds the tests of all
// packages and runs each package in its own guest, in its directory with MUSTANG_REQUIRE=all, as many guests at once
// as there are processors. It prints the output of go test and exits with 1 if a test failed. With -skipped it runs
// the tests that need a feature which this machine's kernel lacks:
//
//	MUSTANG_SKIPPED=$PWD/list go test -count=1 ./...
//	go run ./test/vm -skipped list test
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/vm"
)

func main() {
	if vm.IsInit() {
		fmt.Fprintln(os.Stderr, vm.Init(nil))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(runner{stdout: os.Stdout, stderr: os.Stderr}.main(ctx, os.Args[1:]))
}

const usage = `usage: vm [FLAGS] -- COMMAND [ARGUMENT...]
       vm [FLAGS] test PACKAGE...
       vm [FLAGS] -skipped FILE test

Flags:
`

// main runs a command line and returns the exit code.
func (r runner) main(ctx context.Context, args []string) int {
	if len(args) == 2 && args[0] == insideName {
		return r.inside(ctx, args[1])
	}
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	flags.SetOutput(r.stderr)
	flags.Usage = func() {
		fmt.Fprint(r.stderr, usage)
		flags.PrintDefaults()
	}
	flags.DurationVar(&r.timeout, "timeout", 10*time.Minute,
		"how long the command, or the tests of each package, may take")
	flags.IntVar(&r.guest.MemoryMB, "memory", 0, "memory of the guest in MiB (default 2048)")
	flags.StringVar(&r.guest.Share, "share", "", "`directory` that the guest may write to")
	flags.BoolVar(&r.guest.CountInstructions, "count-instructions", false,
		"let the guest's clock count instructions, on one processor")
	flags.StringVar(&r.kernels, "kernels", vm.DefaultKernelDir, "`directory` that kernels are kept in")
	newest := flags.Bool("newest", false, "take the newest kernel of Debian's backports in place of Linux 6.12")
	flags.BoolVar(&r.console, "console", false, "print what the guest's kernel prints")
	flags.BoolVar(&r.verbose, "v", false, "test: print the output of tests that pass, too")
	flags.StringVar(&r.run, "run", "",
		"test: run only tests that match this `pattern` (with -skipped: whole names, subtests included)")
	flags.StringVar(&r.skipped, "skipped", "",
		"test: run the tests listed in this `file`, which go test writes with MUSTANG_SKIPPED set")
	split := slices.Index(args, "--")
	own := args
	if split >= 0 {
		own = args[:split]
	}
	if err := flags.Parse(own); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return exitMisuse
	}
	if *newest {
		if r.kernels == vm.DefaultKernelDir {
			r.kernels = filepath.Join(vm.DefaultKernelDir, "newest")
		}
		if err := fetchNewest(ctx, r.kernels); err != nil {
			return r.fail(exitGuest, err)
		}
	}
	if r.console {
		r.guest.Console = r.stderr
	}
	switch {
	case split >= 0 && flags.NArg() == 0 && split+1 < len(args):
		return r.command(ctx, args[split+1:])
	case split < 0 && flags.NArg() > 1 && flags.Arg(0) == "test" && r.skipped == "":
		return r.test(ctx, flags.Args()[1:], nil)
	case split < 0 && flags.NArg() == 1 && flags.Arg(0) == "test" && r.skipped != "":
		return r.testSkipped(ctx)
	}
	flags.Usage()
	return exitMisuse
}
