// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/vm"
)

// GuestName is the hidden subcommand that runs [Guest].
const GuestName = "lab-guest"

// cpuFlag is how an agent is told what CPU it is to run on.
const cpuFlag = "--cpu="

const (
	// guestMemory is a guest's memory in MiB.
	guestMemory = 256
	// guestBoot is how long a guest may take to boot: 3 s on an idle machine, ten times
	// that on a busy one.
	guestBoot = 55 * time.Second
	// portFree is how long the guest before may take to let go of the port.
	portFree = 5 * time.Second
)

// guestOrder is what a process that runs a guest is told.
type guestOrder struct {
	Place, TAP, MAC string
	MTU             int
	Addresses       []netip.Prefix
	Gateways        []netip.Addr
	NoOffload       bool // packets must be finished when they leave the guest
	Kernel          vm.Kernel
	Acceleration    string
	Program         string
	Arguments       []string
	CPU             int // that the guest runs on; negative: any
}

// Streams are those of a process.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Guest boots a guest that is plugged into the network namespace that the process
// runs in, runs a command in it, and returns at its end. It is the life of the
// process that [Lab.Start] starts for a guest, and its only argument comes from
// there. The command's environment is that of the process.
func Guest(ctx context.Context, args []string, streams Streams) error {
	var order guestOrder
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &order) != nil {
		return errors.New("guest: want one argument, which labs give it")
	}
	code, err := order.run(ctx, streams)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("guest %s: %w", order.Place, err)
	}
	return nil
}

func (o guestOrder) run(ctx context.Context, streams Streams) (int, error) {
	tap, err := openPort(ctx, o.TAP)
	if err != nil {
		return 0, err
	}
	defer tap.Close()
	// What this thread starts inherits its CPU: QEMU does, with the guest's processor.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if o.CPU >= 0 {
		var set unix.CPUSet
		set.Set(o.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return 0, fmt.Errorf("pin to CPU %d: %w", o.CPU, err)
		}
	}
	return vm.Run(ctx, vm.Options{
		Kernel: o.Kernel, Init: o.Program, Bare: true, Acceleration: o.Acceleration,
		Command: append([]string{vm.Program}, o.Arguments...),
		CPUs:    1, MemoryMB: guestMemory, BootTimeout: guestBoot,
		Network: &vm.Network{
			TAP: tap, MAC: o.MAC, MTU: o.MTU, Addresses: o.Addresses, Gateways: o.Gateways, NoOffload: o.NoOffload,
		},
		Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr,
	})
}

// openPort opens a guest's port. The guest before may be about to end.
func openPort(ctx context.Context, name string) (*os.File, error) {
	for deadline := time.Now().Add(portFree); ; {
		tap, err := vm.OpenTAP(name)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return tap, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
