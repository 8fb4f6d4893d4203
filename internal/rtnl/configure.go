// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeviceConfig is the configuration that Configure applies.
type DeviceConfig struct {
	// Up sets the device up. False leaves its state alone.
	Up bool
	// MTU is in bytes; 0 leaves it alone.
	MTU int
	// Addresses are added to those of the device. An address that the device has already is no error. IPv6 addresses
	// skip duplicate address detection and are usable at once.
	Addresses []netip.Prefix
}

// check rejects values that the netlink library would interpret differently.
func (c DeviceConfig) check() error {
	if c.MTU < 0 {
		return fmt.Errorf("invalid MTU %d", c.MTU)
	}
	for _, address := range c.Addresses {
		if !address.IsValid() {
			return fmt.Errorf("invalid address %v with prefix length %d", address.Addr(), address.Bits())
		}
	}
	return nil
}

// Configure sets a device's MTU, then its state, then its addresses. The kernel adds the routes to the addresses'
// prefixes. If Up is set, the kernel accepts packets to the addresses when Configure returns. After an error the
// earlier steps stay.
func (c Conn) Configure(name string, config DeviceConfig) error {
	return c.onDevice("configure ", name, func(handle *netlink.Handle, link netlink.Link) error {
		if err := config.check(); err != nil {
			return err
		}
		if config.MTU > 0 {
			if err := handle.LinkSetMTU(link, config.MTU); err != nil {
				return fmt.Errorf("set MTU to %d: %w", config.MTU, err)
			}
		}
		if config.Up {
			if err := handle.LinkSetUp(link); err != nil {
				return fmt.Errorf("set up: %w", err)
			}
		}
		for _, address := range config.Addresses {
			if err := handle.AddrReplace(link, DeviceAddress(address)); err != nil {
				return fmt.Errorf("add address %s: %w", address, err)
			}
		}
		for _, address := range config.Addresses {
			if !config.Up {
				break
			}
			if err := c.AwaitLocal(handle, link, address.Addr()); err != nil {
				return fmt.Errorf("add address %s: %w", address, err)
			}
		}
		return nil
	})
}

// SetUp sets a device up or down. A device that is down keeps its addresses and loses its routes.
func (c Conn) SetUp(name string, up bool) error {
	try, set := "set down ", (*netlink.Handle).LinkSetDown
	if up {
		try, set = "set up ", (*netlink.Handle).LinkSetUp
	}
	return c.onDevice(try, name, set)
}

// DeviceAddress converts an address with its prefix length to the library's form. An IPv6 address skips duplicate
// address detection.
func DeviceAddress(address netip.Prefix) *netlink.Addr {
	ip := address.Addr()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(address.Bits(), ip.BitLen())}}
	if ip.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// RemoveAddresses removes addresses from a device. A device or an address that is not there is no error. Others in the same subnet stay.
func (c Conn) RemoveAddresses(name string, addresses []netip.Prefix) error {
	err := c.onDevice("remove addresses of ", name, func(handle *netlink.Handle, link netlink.Link) (err error) {
		undo, err := c.keepSecondaries(name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		for _, address := range addresses {
			if err := handle.AddrDel(link, DeviceAddress(address)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", address, err)
			}
		}
		return nil
	})
	if errors.Is(err, noDevice{}) {
		return nil
	}
	return err
}

// keepSecondaries keeps the kernel from removing, with the first IPv4 address of a device in a subnet, the others there, until undo.
func (c Conn) keepSecondaries(device string) (undo func() error, err error) {
	key := "net/ipv4/conf/" + device + "/promote_secondaries"
	before, err := c.Sysctl(key)
	if err != nil {
		return nil, err
	}
	return func() error { return c.SetSysctl(key, before) }, c.SetSysctl(key, "1")
}
