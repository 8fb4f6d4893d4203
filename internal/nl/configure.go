// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeviceConfig is what Configure sets.
type DeviceConfig struct {
	// Up sets the device up. False leaves it as it is.
	Up bool
	// MTU is in bytes; 0 leaves it as it is.
	MTU int
	// Addresses are added to those that the device has. One that it has already is
	// no error. IPv6 addresses are usable at once, without duplicate address
	// detection.
	Addresses []netip.Prefix
}

// check refuses what the netlink library would take for something else.
func (c DeviceConfig) check() error {
	if c.MTU < 0 {
		return fmt.Errorf("MTU %d", c.MTU)
	}
	for _, address := range c.Addresses {
		if !address.IsValid() {
			return fmt.Errorf("address %v with prefix length %d", address.Addr(), address.Bits())
		}
	}
	return nil
}

// localTimeout is how long the kernel may take to make an IPv6 address its own.
// It does so in a work queue, within a millisecond unless the machine is busy.
const localTimeout = 5 * time.Second

// Configure sets up a device that exists in n: MTU, then state, then addresses.
// The kernel adds the routes to the addresses' prefixes. If the device is up,
// packets to its addresses are taken when it returns. If it fails, what was set
// before stays.
func (n *Namespace) Configure(name string, config DeviceConfig) error {
	fail := func(err error) error {
		return fmt.Errorf("configure device %q in network namespace %q: %w", name, n.Name(), err)
	}
	if err := config.check(); err != nil {
		return fail(err)
	}
	handle, err := n.Netlink()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return fail(err)
	}
	if config.MTU > 0 {
		if err := handle.LinkSetMTU(link, config.MTU); err != nil {
			return fail(fmt.Errorf("set MTU to %d: %w", config.MTU, err))
		}
	}
	if config.Up {
		if err := handle.LinkSetUp(link); err != nil {
			return fail(fmt.Errorf("set up: %w", err))
		}
	}
	for _, address := range config.Addresses {
		if err := handle.AddrReplace(link, deviceAddress(address)); err != nil {
			return fail(fmt.Errorf("add address %s: %w", address, err))
		}
	}
	if !config.Up {
		return nil
	}
	for _, address := range config.Addresses {
		if err := awaitLocal(handle, link, address.Addr()); err != nil {
			return fail(fmt.Errorf("add address %s: %w", address, err))
		}
	}
	return nil
}

// SetUp sets a device in n up or down. Its addresses stay; a device that is down has
// no routes, and answers for none of them.
func (n *Namespace) SetUp(name string, up bool) error {
	handle, err := n.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	set, state := handle.LinkSetDown, "down"
	if up {
		set, state = handle.LinkSetUp, "up"
	}
	link, err := handle.LinkByName(name)
	if err == nil {
		err = set(link)
	}
	if err != nil {
		return fmt.Errorf("set device %q in network namespace %q %s: %w", name, n.Name(), state, err)
	}
	return nil
}

// awaitLocal waits until packets to an address of a device are delivered here.
func awaitLocal(handle *netlink.Handle, link netlink.Link, addr netip.Addr) error {
	options := &netlink.RouteGetOptions{}
	if addr.IsLinkLocalUnicast() {
		options.OifIndex = link.Attrs().Index
	}
	for deadline := time.Now().Add(localTimeout); ; time.Sleep(100 * time.Microsecond) {
		routes, err := handle.RouteGetWithOptions(addr.AsSlice(), options)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("it is not in use after %v", localTimeout), err)
		}
	}
}

// deviceAddress is an address with its prefix length in the library's form.
func deviceAddress(address netip.Prefix) *netlink.Addr {
	ip := address.Addr()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(address.Bits(), ip.BitLen())}}
	if ip.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}
