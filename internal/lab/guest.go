// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/vm"
)

// GuestCommand is the hidden subcommand that runs [RunGuest].
const GuestCommand = "lab-guest"

const cpuFlag = "--cpu="

const (
	// While a guest boots, half of what the kernel leaves of its MiB has to hold the program, of 70 MB.
	guestMemoryMB    = 384
	guestBootTimeout = 55 * time.Second // limits a boot, which takes 3 s on an idle machine
	tapTimeout       = 5 * time.Second
)

// guestPod is a bare virtual machine with a port on a host, which boots for each command that is run in it.
type guestPod struct {
	Name         string
	Host         *netns.Namespace `json:"-"` // contains the port; the guest's process runs in it
	TAP          string           // name of the TAP device on the host
	Network      vm.Network       // without TAP
	Kernel       vm.Kernel
	Acceleration string // vm.KVM or vm.TCG

	process *os.Process // of the last command; nil before the first
}

// boot is the argument of the process that boots a guest.
type boot struct {
	guestPod
	Program   string
	Arguments []string
	CPU       int // pins the guest's processor; negative: no pinning
}

// start changes cmd into a process of the host that boots the guest and runs cmd in it, and starts that by the function
// start. Guest and command end together. cmd's program is the only one in the guest: static, and leading to [vm.Init].
// An argument --cpu=N of cmd pins the guest's one processor to that CPU. A guest runs one command at a time.
func (g *guestPod) start(cmd *exec.Cmd, start func(host *netns.Namespace, cmd *exec.Cmd) error) (err error) {
	if g.process != nil && g.process.Signal(unix.Signal(0)) == nil {
		return fmt.Errorf("guest %s already runs a command", g.Name)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start guest %s: %w", g.Name, err)
		}
	}()
	if cmd.Err != nil {
		return cmd.Err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	b := boot{guestPod: *g, Program: cmd.Path, CPU: -1}
	for _, arg := range cmd.Args[min(1, len(cmd.Args)):] {
		if n, ok := strings.CutPrefix(arg, cpuFlag); ok {
			if b.CPU, err = strconv.Atoi(n); err != nil {
				return err
			}
			arg = cpuFlag + strconv.Itoa(min(b.CPU, 0)) // the guest's only processor
		}
		b.Arguments = append(b.Arguments, arg)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	cmd.Path, cmd.Args = exe, []string{exe, GuestCommand, string(text)}
	if err := start(g.Host, cmd); err != nil {
		return err
	}
	g.process = cmd.Process
	return nil
}

// RunGuest boots a guest in the network namespace of the process, runs a command in it with the environment of the
// process, and returns when the command ends. [Lab.Start] starts this process for a guest, and passes its only
// argument. Only Stdin, Stdout and Stderr of streams count.
func RunGuest(ctx context.Context, args []string, streams vm.Options) error {
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

func (b boot) run(ctx context.Context, o vm.Options) (_ int, err error) {
	if b.Network.TAP, err = awaitTAP(ctx, b.TAP); err != nil {
		return 0, err
	}
	defer b.Network.TAP.Close()
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
	o.Kernel, o.Init, o.Bare, o.Acceleration, o.Network = b.Kernel, b.Program, true, b.Acceleration, &b.Network
	o.Command = append([]string{vm.Program}, b.Arguments...)
	o.MemoryMB, o.BootTimeout = guestMemoryMB, guestBootTimeout
	return vm.Run(ctx, o)
}

// awaitTAP opens the guest's TAP device, which the previous guest may be about to release.
func awaitTAP(ctx context.Context, name string) (*os.File, error) {
	for deadline := time.Now().Add(tapTimeout); ; {
		if tap, err := vm.OpenTAP(name); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return tap, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// addGuest adds a pod that is a virtual machine: its port on the host. The guest boots with [Lab.Start].
func (l *Lab) addGuest(mode podlink.Mode, network podlink.Network, p pod) error {
	if _, err := mode.Create(network, podlink.Pod{HostIfName: p.hostIfName, Addresses: p.addresses}); err != nil {
		return err
	}
	mac := sha256.Sum256(p.addresses[0].AsSlice()) // the same in every lab
	mac[0] = mac[0]&^1 | 2                         // locally administered
	g := l.guest
	g.Name, g.Host, g.TAP = p.place, network.Host, p.hostIfName
	g.Network = vm.Network{
		MAC: net.HardwareAddr(mac[:6]).String(), MTU: network.MTU,
		NoOffload: mode.Traits().Needs == podlink.NeedsOpenVSwitch && l.ovsDatapath == OVSUserSpace,
	}
	for _, gateway := range network.Gateways {
		for _, addr := range p.addresses {
			if gateway.Contains(addr) {
				g.Network.Addresses = append(g.Network.Addresses, netip.PrefixFrom(addr, gateway.Bits()))
			}
		}
		g.Network.Gateways = append(g.Network.Gateways, gateway.Addr())
	}
	l.pods[p.place] = attached{device: vm.NetworkDevice}
	l.guests[p.place] = &g
	return nil
}

// guestSysctls: addresses are usable at once, and only the host provides routes.
var guestSysctls = []rtnl.Sysctl{
	{Key: "net/ipv4/conf/all/accept_redirects", Value: "0"},
	{Key: "net/ipv4/conf/" + vm.NetworkDevice + "/accept_redirects", Value: "0"},
	{Key: "net/ipv6/conf/" + vm.NetworkDevice + "/accept_redirects", Value: "0"},
	{Key: "net/ipv6/conf/" + vm.NetworkDevice + "/accept_dad", Value: "0"},
	{Key: "net/ipv6/conf/" + vm.NetworkDevice + "/accept_ra", Value: "0"},
}

// ConfigureGuest adds addresses and routes to the device of the guest that it runs in, as an argument of [vm.Init].
func ConfigureGuest(n vm.Network) error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := rtnl.In(ns).SetSysctls(guestSysctls, nil); err != nil {
		return err
	}
	err = rtnl.In(ns).Configure(vm.NetworkDevice, rtnl.DeviceConfig{Up: true, MTU: n.MTU, Addresses: n.Addresses})
	if err != nil {
		return err
	}
	return rtnl.In(ns).AddDefaultRoutes(vm.NetworkDevice, n.Gateways)
}
