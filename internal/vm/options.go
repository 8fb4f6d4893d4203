// SPDX-License-Identifier: Apache-2.0

// Package vm runs a command as root in a virtual machine with a stock Debian kernel, independent of the kernel of
// this machine.
//
// The guest is QEMU, with software emulation by default. Its root is this machine's root file system, read-only, below
// an overlay in the guest's memory: the command's writes are lost when it ends. A bare guest has a single program and
// none of these files; it boots faster and needs less memory.
//
// The initramfs contains one static program, process 1 of the guest: the program that calls [Run], or another one. Its
// main function has to call [Init] if [IsInit] returns true. The kernel may pass arguments to it that have no meaning.
package vm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options describe a command and the guest that runs it.
type Options struct {
	Kernel Kernel // the kernel of the guest, see [FetchKernel]
	Init   string // a static program that calls [Init] when it is process 1; empty means the running program
	// Bare starts the guest without files of this machine but Init, at [Program]. It boots faster and needs less
	// memory. Dir and Share have no effect.
	Bare         bool
	Acceleration string   // [KVM] or [TCG]; empty means TCG
	Network      *Network // gives the guest a network device; nil means none
	Command      []string // run as root, without a shell. A name without a slash is searched on the PATH of Env.
	Dir          string   // the working directory of the command; empty means the current one
	Env          []string // the command's environment; nil means the environment of this process
	// Modules are names of kernel modules to load first. The kernel loads most modules on
	// demand, but not some such as br_netfilter.
	Modules []string
	// Share is a directory that the guest writes to; empty means none. All other writes of the guest are lost.
	Share string
	// MemoryMB is the guest's memory in MiB; 0 means 2048. Files that it writes outside of Share use up to half of it.
	MemoryMB    int
	BootTimeout time.Duration // limits the time until the command runs; 0 means two minutes
	Timeout     time.Duration // limits the run time of the command; 0 means no limit
	// Grace is the time that the command has to end after SIGINT when the context ends. 0 ends the guest at once.
	Grace time.Duration
	// CountInstructions makes the guest's clock count instructions, one per nanosecond. They repeat to about 1 %.
	CountInstructions bool
	// Stdin is the input of the command; nil means none. A Read may still be pending when the command has ended.
	Stdin io.Reader
	// Stdout and Stderr receive the output of the command as it is written; nil discards it.
	Stdout, Stderr io.Writer
	// Console receives the output of the kernel; nil discards it. The error of a failed guest contains its end.
	Console io.Writer
}

func (o Options) withDefaults() (_ Options, err error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return o, errors.New("no command")
	}
	o.BootTimeout, o.MemoryMB = cmp.Or(o.BootTimeout, bootTimeout), cmp.Or(o.MemoryMB, 2048)
	if o.Env == nil {
		o.Env = os.Environ()
	}
	for _, w := range []*io.Writer{&o.Stdout, &o.Stderr, &o.Console} {
		if *w == nil {
			*w = io.Discard
		}
	}
	if o.Init == "" {
		if o.Init, err = os.Executable(); err != nil {
			return o, fmt.Errorf("find the running program: %w", err)
		}
	}
	if o.Bare {
		o.Dir, o.Share = "/", ""
	}
	o.Dir = cmp.Or(o.Dir, ".")
	for _, path := range []*string{&o.Dir, &o.Share, &o.Kernel.Image, &o.Kernel.Modules} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	for _, dir := range []string{o.Dir, o.Share} {
		info, err := os.Stat(cmp.Or(dir, "/"))
		switch {
		case err != nil:
			return o, err
		case !info.IsDir():
			return o, fmt.Errorf("%s is not a directory", dir)
		}
	}
	return o, o.Kernel.check()
}
