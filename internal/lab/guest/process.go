// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/vm"
)

// Command is the hidden subcommand that runs [Run].
const Command = "lab-guest"

// cpuFlag is the flag of agents that names their CPU.
const cpuFlag = "--cpu="

const (
	// memoryMB is a guest's memory in MiB. While it boots, half of what the kernel leaves has to hold the program, of 70 MB.
	memoryMB = 384
	// bootTimeout limits a boot, which takes 3 s on an idle machine.
	bootTimeout = 55 * time.Second
	// tapTimeout limits the wait for the previous guest to release the TAP device.
	tapTimeout = 5 * time.Second
)

// boot is the argument of the process that boots a guest.
type boot struct {
	Name      string
	Machine   Machine
	Port      Port
	Program   string
	Arguments []string
	CPU       int // pins the guest's processor; negative: no pinning
}

// Streams are the standard streams of a process.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run boots a guest in the network namespace of the process, runs a command in it
// with the environment of the process, and returns when the command ends. It is the
// process that [Guest.Start] starts; its only argument comes from there.
func Run(ctx context.Context, args []string, streams Streams) error {
	var b boot
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &b) != nil {
		return errors.New("guest: want the one argument that a lab passes")
	}
	code, err := b.run(ctx, streams)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("guest %s: %w", b.Name, err)
	}
	return nil
}

func (b boot) run(ctx context.Context, streams Streams) (int, error) {
	tap, err := openTAP(ctx, b.Port.TAP)
	if err != nil {
		return 0, err
	}
	defer tap.Close()
	// QEMU and the thread of the guest's processor inherit the CPU of this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if b.CPU >= 0 {
		var set unix.CPUSet
		set.Set(b.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return 0, fmt.Errorf("pin to CPU %d: %w", b.CPU, err)
		}
	}
	return vm.Run(ctx, vm.Options{
		Kernel: b.Machine.Kernel, Init: b.Program, Bare: true, Acceleration: b.Machine.Acceleration,
		Command: append([]string{vm.Program}, b.Arguments...),
		CPUs:    1, MemoryMB: memoryMB, BootTimeout: bootTimeout,
		Network: &vm.Network{
			TAP: tap, MAC: b.Port.MAC, MTU: b.Port.MTU, Addresses: b.Port.Addresses, Gateways: b.Port.Gateways,
			NoOffload: b.Port.NoOffload,
		},
		Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr,
	})
}

// openTAP opens the guest's TAP device, which the previous guest may be about to
// release.
func openTAP(ctx context.Context, name string) (*os.File, error) {
	for deadline := time.Now().Add(tapTimeout); ; {
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
