// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options say what to run and in what guest.
type Options struct {
	// Kernel is what the guest boots, see [FetchKernel].
	Kernel Kernel
	// Init is a static executable that leads to [Init] when it is process 1; empty
	// means the running one.
	Init string
	// Bare gives the guest no files of this machine but Init, which is [Program] in
	// there: it boots faster, and needs less memory. Dir and Share mean nothing then.
	Bare bool
	// Acceleration is [KVM] or [TCG]; empty means TCG.
	Acceleration string
	// Network gives the guest a network device; nil means none.
	Network *Network
	// Command is run as root, without a shell. A name without a slash is looked for
	// on the PATH of Env.
	Command []string
	// Dir is where the command starts; empty means the current directory.
	Dir string
	// Env is the command's environment; nil means that of this process.
	Env []string
	// Modules are names of kernel modules to load first. The kernel itself loads
	// most when they are needed; it can't know of some, like br_netfilter.
	Modules []string
	// Share is a directory that the guest sees as it is and writes to; empty means
	// none. All else that the guest writes is lost.
	Share string
	// CPUs is the number of the guest's processors; 0 means 2, or 1 with
	// CountInstructions.
	CPUs int
	// MemoryMB is the guest's memory in MiB; 0 means 2048. Files that it writes
	// outside of Share take up to half of it.
	MemoryMB int
	// BootTimeout is how long the guest may take until the command runs; 0 means two
	// minutes.
	BootTimeout time.Duration
	// Timeout is how long the command may run; 0 means as long as it takes.
	Timeout time.Duration
	// Grace is how long a command may go on after the context ended: it gets SIGINT
	// then. 0 ends the guest at once.
	Grace time.Duration
	// CountInstructions makes the guest's clock count instructions, one per
	// nanosecond, on a single processor: what is measured then repeats to about 1 %
	// and means instructions, not time.
	CountInstructions bool
	// Stdin is what the command reads; nil means nothing. A Read may still be under
	// way when the command has ended.
	Stdin io.Reader
	// Stdout and Stderr take what the command writes, as it does; nil discards it.
	Stdout, Stderr io.Writer
	// Console takes what the kernel prints; nil discards it. Its end is in the error
	// of a guest that fails.
	Console io.Writer
}

// withDefaults fills in what was left out and returns an error that names the
// first option that makes no sense.
func (o Options) withDefaults() (Options, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return o, errors.New("run in a guest: no command")
	}
	switch {
	case o.CPUs < 0 || o.MemoryMB < 0 || o.BootTimeout < 0 || o.Timeout < 0 || o.Grace < 0:
		return o, fmt.Errorf("run in a guest: CPUs %d, memory %d MiB, time to boot %v, timeout %v, grace %v: want none below 0",
			o.CPUs, o.MemoryMB, o.BootTimeout, o.Timeout, o.Grace)
	case o.CountInstructions && o.CPUs > 1:
		return o, fmt.Errorf("run in a guest: %d CPUs: instructions can be counted on one only", o.CPUs)
	case o.Acceleration != "" && o.Acceleration != KVM && o.Acceleration != TCG:
		return o, fmt.Errorf("run in a guest: acceleration %q: want %s or %s", o.Acceleration, KVM, TCG)
	case o.Acceleration == KVM && o.CountInstructions:
		return o, errors.New("run in a guest: instructions can be counted in emulation only")
	}
	if o.BootTimeout == 0 {
		o.BootTimeout = bootTimeout
	}
	if o.CPUs == 0 {
		o.CPUs = 2
		if o.CountInstructions {
			o.CPUs = 1
		}
	}
	if o.MemoryMB == 0 {
		o.MemoryMB = 2048
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	for _, w := range []*io.Writer{&o.Stdout, &o.Stderr, &o.Console} {
		if *w == nil {
			*w = io.Discard
		}
	}
	return o.withPaths()
}

// withPaths makes all paths absolute and checks that there is something.
func (o Options) withPaths() (Options, error) {
	if o.Init == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("run in a guest: find the running program: %w", err)
		}
		o.Init = exe
	}
	if o.Bare {
		o.Dir, o.Share = "/", ""
	}
	if o.Dir == "" {
		o.Dir = "."
	}
	for _, path := range []*string{&o.Dir, &o.Share, &o.Kernel.Image, &o.Kernel.Modules} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return o, fmt.Errorf("run in a guest: %q: %w", *path, err)
		}
		*path = absolute
	}
	if err := o.Kernel.check(); err != nil {
		return o, fmt.Errorf("run in a guest: %w", err)
	}
	for _, dir := range []string{o.Dir, o.Share} {
		if dir == "" {
			continue
		}
		if info, err := os.Stat(dir); err != nil {
			return o, fmt.Errorf("run in a guest: %w", err)
		} else if !info.IsDir() {
			return o, fmt.Errorf("run in a guest: %s is not a directory", dir)
		}
	}
	return o, nil
}
