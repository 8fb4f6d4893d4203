// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/vm"
)

// guests are a lab's pods that are virtual machines.
type guests struct {
	kernel       vm.Kernel
	acceleration string // vm.KVM or vm.TCG; empty if the lab has no guests
	at           map[string]*guest
}

// guest is a pod that is plugged in, and is booted when something is started
// there.
type guest struct {
	host    *nl.Namespace // where its port is
	order   guestOrder
	process *os.Process // of the last start; nil if there was none
}

// links of guests.
var guestLinks = []string{"tap", "ovs-tap"}

// guest reports whether a place is one.
func (o Options) guest(place string) bool { return o.Guests && (place == PodA || place == PodB) }

// checkGuests says what does not go together with guests.
func (o Options) checkGuests() error {
	switch {
	case !o.Guests && slices.ContainsFunc(podlink.GuestModes(), func(m podlink.Mode) bool { return m.Name() == o.Link }):
		return optionErrorf("link %s is for guests", o.Link)
	case !o.Guests:
		return nil
	case !slices.Contains(guestLinks, o.Link):
		return optionErrorf("link %s: guests have %s", o.Link, strings.Join(guestLinks, " or "))
	case o.Datapath != DatapathKernel:
		return optionErrorf("datapath %s is not for guests", o.Datapath)
	case o.Via != ViaNone:
		return optionErrorf("via %s: guests have no services", o.Via)
	case o.Offload:
		return optionErrorf("offload is a setting of links between namespaces, not of guests")
	}
	return nil
}

// prepareGuests finds a kernel for the lab's guests, and how they can run.
func (l *Lab) prepareGuests(ctx context.Context) (err error) {
	if !l.Options.Guests {
		return nil
	}
	if err := vm.CheckTools(); err != nil {
		return err
	}
	l.guests.at = map[string]*guest{}
	if l.guests.kernel, err = vm.FetchKernel(ctx, ""); err != nil {
		return err
	}
	l.guests.acceleration, err = vm.Acceleration(ctx, l.guests.kernel)
	return err
}

// Acceleration is how the lab's guests run: "kvm" or "tcg", which is emulation.
// It is empty if the lab has none.
func (l *Lab) Acceleration() string { return l.guests.acceleration }

// plugGuest plugs in a guest: it makes the port that the guest will be at.
func (l *Lab) plugGuest(mode podlink.Mode, network podlink.Network, pod plugged) error {
	_, err := mode.Create(network, podlink.Pod{HostIfName: HostIfName(pod.name), Addresses: pod.ips})
	if err != nil {
		return err
	}
	g := &guest{host: network.Host, order: guestOrder{
		Place: pod.name, TAP: HostIfName(pod.name), MAC: GuestMAC(pod.ips[0]).String(), MTU: network.MTU,
		Kernel: l.guests.kernel, Acceleration: l.guests.acceleration,
	}}
	for _, gateway := range network.Gateways {
		for _, ip := range pod.ips {
			if gateway.Contains(ip) {
				g.order.Addresses = append(g.order.Addresses, netip.PrefixFrom(ip, gateway.Bits()))
			}
		}
		g.order.Gateways = append(g.order.Gateways, gateway.Addr())
	}
	if mode.Needs() == podlink.NeedsOpenVSwitch {
		datapath, err := podlink.OVSDatapath(network)
		if err != nil {
			return err
		}
		g.order.NoOffload = datapath == podlink.OVSUserSpace
	}
	l.devices[pod.name], l.guests.at[pod.name] = IfName, g
	return nil
}

// GuestMAC is the MAC address of a guest, by the first of its addresses.
func GuestMAC(addr netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256(addr.AsSlice())
	sum[0] = sum[0]&^1 | 2 // locally administered, of one device
	return sum[:6]
}

// startGuest makes of cmd a process that boots the guest and runs cmd in there,
// with cmd's input and output; when it ends the guest does, and the other way
// round. It is a process of the host that the guest is plugged into.
//
// The guest has no program but cmd's, which must be static and lead to vm.Init,
// and one processor: an argument --cpu=N of cmd says which CPU of this machine
// that is. A guest runs one command at a time.
func (l *Lab) startGuest(g *guest, cmd *exec.Cmd) error {
	if g.process != nil && g.process.Signal(unix.Signal(0)) == nil {
		return fmt.Errorf("lab %s: guest %s runs already", l.Options.Name, g.order.Place)
	}
	if cmd.Err != nil {
		return fmt.Errorf("start guest %s: %w", g.order.Place, cmd.Err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start guest %s: %w", g.order.Place, err)
	}
	order := g.order
	order.Program, order.CPU = cmd.Path, -1
	for _, arg := range cmd.Args[min(1, len(cmd.Args)):] {
		if n, ok := strings.CutPrefix(arg, cpuFlag); ok {
			if order.CPU, err = strconv.Atoi(n); err != nil {
				return fmt.Errorf("start guest %s: argument %s: %w", g.order.Place, arg, err)
			}
			arg = cpuFlag + strconv.Itoa(min(order.CPU, 0))
		}
		order.Arguments = append(order.Arguments, arg)
	}
	text, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("start guest %s: %w", g.order.Place, err)
	}
	cmd.Path, cmd.Args = exe, []string{exe, GuestName, string(text)}
	if err := l.startIn(g.host, cmd); err != nil {
		return err
	}
	g.process = cmd.Process
	return nil
}
