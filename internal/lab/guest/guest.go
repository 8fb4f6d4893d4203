// SPDX-License-Identifier: Apache-2.0

// Package guest makes pods of virtual machines. A [Guest] has a port on a host, and
// boots for each command that is run in it. The command that started it runs [Run],
// which owns the QEMU process.
package guest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/vm"
)

// Machine is the hardware and the kernel of guests.
type Machine struct {
	Kernel       vm.Kernel
	Acceleration string // vm.KVM or vm.TCG
}

// CheckInstalled returns an error if a program or the kernel that guests need is missing.
func CheckInstalled() error { return vm.CheckInstalled() }

// FindMachine fetches a kernel and finds out how this machine runs guests with it.
func FindMachine(ctx context.Context) (m Machine, err error) {
	if err := vm.CheckTools(); err != nil {
		return m, err
	}
	if m.Kernel, err = vm.FetchKernel(ctx, ""); err != nil {
		return m, err
	}
	m.Acceleration, err = vm.Acceleration(ctx, m.Kernel)
	return m, err
}

// Port is the network of a guest.
type Port struct {
	TAP string // name of the TAP device on the host
	MAC string // the guest's, see [MAC]
	MTU int    // in bytes; 0 means 1500
	// Addresses are the guest's, with the prefix lengths of their networks.
	Addresses []netip.Prefix
	// Gateways are the next hops of the default routes, at most one per family.
	Gateways []netip.Addr
	// NoOffload makes the guest complete its packets (checksums and segmentation) before
	// it sends them.
	NoOffload bool
}

// Guest is a virtual machine that boots for each command that is run in it.
type Guest struct {
	Name    string
	Host    *netns.Namespace // contains the port; the guest's process runs in it
	Machine Machine
	Port    Port

	process *os.Process // of the last command; nil before the first
}

// MAC returns the MAC address of a guest with that address: locally administered and
// the same in every lab.
func MAC(addr netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(addr.AsSlice())
	sum[0] = sum[0]&^1 | 2
	return sum[:6]
}

// Start runs cmd in the guest: it changes cmd into a process of the host that boots
// the guest and runs cmd in it, with cmd's input and output, and starts that with
// start. The guest ends with the command, and the command with the guest.
//
// cmd's program is the only one in the guest. It has to be static and lead to vm.Init.
// The guest has one processor: an argument --cpu=N of cmd pins it to that CPU of this
// machine. A guest runs one command at a time.
func (g *Guest) Start(cmd *exec.Cmd, start func(host *netns.Namespace, cmd *exec.Cmd) error) error {
	if g.process != nil && g.process.Signal(unix.Signal(0)) == nil {
		return fmt.Errorf("guest %s already runs a command", g.Name)
	}
	if cmd.Err != nil {
		return fmt.Errorf("start guest %s: %w", g.Name, cmd.Err)
	}
	if err := g.wrap(cmd); err != nil {
		return fmt.Errorf("start guest %s: %w", g.Name, err)
	}
	if err := start(g.Host, cmd); err != nil {
		return err
	}
	g.process = cmd.Process
	return nil
}

// wrap changes cmd into the command that boots the guest for it.
func (g *Guest) wrap(cmd *exec.Cmd) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	b := boot{Name: g.Name, Machine: g.Machine, Port: g.Port, Program: cmd.Path, CPU: -1}
	for _, arg := range cmd.Args[min(1, len(cmd.Args)):] {
		if n, ok := strings.CutPrefix(arg, cpuFlag); ok {
			if b.CPU, err = strconv.Atoi(n); err != nil {
				return fmt.Errorf("argument %s: %w", arg, err)
			}
			arg = cpuFlag + strconv.Itoa(min(b.CPU, 0)) // the guest's only processor
		}
		b.Arguments = append(b.Arguments, arg)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	cmd.Path, cmd.Args = exe, []string{exe, Command, string(text)}
	return nil
}
