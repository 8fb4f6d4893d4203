// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

type nsHandle struct {
	ns *netns.Namespace
	*netlink.Handle
	undo         *undo                                      // of the operation
	deleteDevice func(ns *netns.Namespace, index int) error // Network.DeleteDevice
	bigTCP       bool                                       // Network.BigTCP
	bigTCP6      bool                                       // Network.BigTCP6
}

// undo takes back the changes of an operation that fails. What creates something adds a step that removes it.
type undo struct{ steps []func() error }

func (u *undo) add(step func() error) { u.steps = append(u.steps, step) }

func (u *undo) onError(err *error) {
	if *err == nil {
		return
	}
	for _, step := range slices.Backward(u.steps) {
		*err = errors.Join(*err, step())
	}
	u.steps = nil
}

func openHandle(ns *netns.Namespace) (nsHandle, error) {
	handle, err := rtnl.In(ns).Handle()
	if err != nil {
		return nsHandle{}, err
	}
	return nsHandle{ns: ns, Handle: handle, undo: &undo{}}, nil
}

func (h nsHandle) close() {
	if h.Handle != nil {
		h.Close()
	}
}

// failed returns the error of an act on a device, which %s of the format stands for; nil if there is none.
func (h nsHandle) failed(err error, device, act string, more ...any) error {
	if err == nil {
		return nil
	}
	act = fmt.Sprintf(act, append([]any{fmt.Sprintf("device %q in %q", device, h.ns.Name())}, more...)...)
	return fmt.Errorf("%s: %w", act, err)
}

// link returns the device of that name. The error matches fs.ErrNotExist if there is none.
func (h nsHandle) link(name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	return link, h.failed(err, name, "%s")
}

func (h nsHandle) checkNameFree(name string) error {
	_, err := h.link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return cmp.Or(err, h.failed(fs.ErrExist, name, "%s"))
}

// newAttrs are the attributes of a new device with the kernel's defaults.
func newAttrs(name string) netlink.LinkAttrs {
	out := netlink.NewLinkAttrs()
	out.Name = name
	return out
}

func addError(err error, name, kind string, ns *netns.Namespace) error {
	return fmt.Errorf("create %s device %q in %q: %w", kind, name, ns.Name(), err)
}

// addInside creates a device inside a namespace, whose parent is a device of the host.
//
// Before Linux 6.15 the kernel refuses a name that a device of the host has (in a pod "eth0" often is) with EEXIST. The
// device then gets its name in a second step.
func addInside(host, inside nsHandle, device netlink.Link) (netlink.Link, error) {
	attrs := device.Attrs()
	name := attrs.Name
	attrs.Namespace = netlink.NsFd(inside.ns.FD())
	err := host.LinkAdd(device)
	if errors.Is(err, unix.EEXIST) && inside.checkNameFree(name) == nil {
		attrs.Name = "mst" + rand.Text()[:8]
		err = host.LinkAdd(device)
	}
	if err != nil {
		return nil, addError(err, name, device.Type(), inside.ns)
	}
	current := attrs.Name
	inside.undo.add(func() error { return inside.remove(current, device.Type()) })
	link, err := inside.link(current)
	if err != nil || current == name {
		return link, err
	}
	if err := inside.failed(inside.LinkSetName(link, name), name, "name %s"); err != nil {
		return nil, err
	}
	current = name
	return inside.link(name)
}

func (h nsHandle) setMTU(link netlink.Link, mtu int) error {
	return h.failed(h.LinkSetMTU(link, mtu), link.Attrs().Name, "set MTU of %s to %d", mtu)
}

func (h nsHandle) setMAC(link netlink.Link, mac net.HardwareAddr) error {
	return h.failed(h.LinkSetHardwareAddr(link, mac), link.Attrs().Name, "set MAC address of %s")
}

// remove deletes the device with the name, if it exists. A device of another kind is not ours, and an error. A handle
// without a namespace lacks devices.
func (h nsHandle) remove(name, kind string) error {
	if h.ns == nil {
		return nil
	}
	link, err := h.link(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if have := kindOf(link); have != kind {
		return fmt.Errorf("device %q in %q is not ours: it is a %s, not a %s", name, h.ns.Name(), have, kind)
	}
	if h.deleteDevice != nil {
		err = h.deleteDevice(h.ns, link.Attrs().Index)
	} else {
		err = rtnl.DeleteLink(h.Handle, link.Attrs().Index)
	}
	return h.failed(err, name, "delete %s")
}

// kindOf returns the kernel's name for the kind of a device.
func kindOf(link netlink.Link) string {
	if _, ok := link.(*netlink.Tuntap); ok {
		return "tun" // the library has another name
	}
	return link.Type()
}

func (h nsHandle) setUp(link netlink.Link) error {
	return h.failed(h.LinkSetUp(link), link.Attrs().Name, "set %s up")
}

// setUpOwn sets a device of the network up, in one message with the limits of BIG TCP if the network has it. A kernel
// or device that refuses them keeps its own. Programs that read TUN and TAP devices expect the usual ones.
func (h nsHandle) setUpOwn(link netlink.Link) error {
	if h.bigTCP && kindOf(link) != "tun" && rtnl.SetUpWithPackets(h.Handle, link, rtnl.BigTCPBytes, h.bigTCP6) == nil {
		return nil
	}
	return h.setUp(link)
}

// ensureUpBridge sets a bridge with a port up. If it was created for BIG TCP, it gets the limits of BIG TCP. The kernel
// takes a bridge's GSO limits from its ports, and drops them without one; its earlier GRO limit shows its purpose.
func (h nsHandle) ensureUpBridge(bridge netlink.Link) error {
	a := bridge.Attrs()
	if h.bigTCP && a.GROIPv4MaxSize >= rtnl.BigTCPBytes && a.GSOIPv4MaxSize < rtnl.BigTCPBytes {
		return h.setUpOwn(bridge)
	}
	return h.ensureUp(bridge)
}

// ensureUp sets a device up unless it was up when link was read: the request takes the kernel's lock of all devices
// even if it changes nothing.
func (h nsHandle) ensureUp(link netlink.Link) error {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	return h.setUp(link)
}

func (h nsHandle) awaitCarrier(link netlink.Link) error {
	return rtnl.In(h.ns).AwaitCarrier(h.Handle, link)
}

// awaitLocal returns when the kernel receives packets to the device's own IPv6 addresses.
func (h nsHandle) awaitLocal(link netlink.Link, addrs []netip.Prefix) error {
	for _, addr := range addrs {
		if addr.Addr().Is4() {
			continue
		}
		if err := rtnl.In(h.ns).AwaitLocal(h.Handle, link, addr.Addr()); err != nil {
			return err
		}
	}
	return nil
}

func (h nsHandle) addAddress(link netlink.Link, addr netip.Prefix, scope netlink.Scope) error {
	err := h.AddrAdd(link, netlinkAddr(addr, scope))
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return h.failed(err, link.Attrs().Name, "add to %s address %v", addr)
}

func (h nsHandle) removeAddress(link netlink.Link, addr netip.Prefix) error {
	err := h.AddrDel(link, netlinkAddr(addr, netlink.SCOPE_UNIVERSE))
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return h.failed(err, link.Attrs().Name, "remove from %s address %v", addr)
}

func (h nsHandle) addGateways(link netlink.Link, addrs []netip.Prefix) error {
	for _, addr := range addrs {
		added, err := rtnl.In(h.ns).AddOwnAddress(link, addr)
		if err != nil {
			return err
		}
		if added {
			h.undo.add(func() error { return h.removeAddress(link, addr) })
		}
	}
	return h.awaitLocal(link, addrs)
}

func netlinkAddr(addr netip.Prefix, scope netlink.Scope) *netlink.Addr {
	address := rtnl.DeviceAddress(addr)
	address.Scope = int(scope)
	return address
}

func hostPrefix(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func hostPrefixes(addrs ...netip.Addr) (out []netip.Prefix) {
	for _, addr := range addrs {
		out = append(out, hostPrefix(addr))
	}
	return out
}

// newMAC returns a random locally administered address. One that is set explicitly is never changed by udev or, on a
// bridge, by the kernel.
func newMAC() (net.HardwareAddr, error) {
	mac := make(net.HardwareAddr, 6)
	if _, err := unix.Getrandom(mac, 0); err != nil { // crypto/rand maps memory first
		return nil, fmt.Errorf("choose a MAC address: %w", err)
	}
	mac[0] = mac[0]&^1 | 2
	return mac, nil
}

// macOf returns a device's address as the kernel has it.
func macOf(link netlink.Link) net.HardwareAddr { return link.Attrs().HardwareAddr }

// wrap adds the operation to err, unless err is nil.
func wrap(err *error, operation string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", operation, *err)
	}
}
