// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address is an address of a device, by which other hosts reach it.
type Address struct {
	Index int // of the device
	Addr  netip.Addr
	// Lasting is whether packets may come from the address for good: it is no secondary, temporary, or deprecated one, and
	// no other host has it.
	Lasting bool
}

// Addresses lists the addresses of the namespace that are neither loopback nor link-local ones, in the kernel's order.
func (c Conn) Addresses() ([]Address, error) {
	handle, err := c.Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	addrs, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", c.ns.Name(), err)
	}
	const passing = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	var all []Address
	for _, a := range addrs {
		if addr := Prefix(a.IPNet).Addr().Unmap(); addr.IsGlobalUnicast() {
			all = append(all, Address{Index: a.LinkIndex, Addr: addr, Lasting: a.Flags&passing == 0})
		}
	}
	return all, nil
}

// Every returns all addresses of the namespace, of loopback devices and link-local ones too. Several devices may have one.
func (c Conn) Every() ([]netip.Addr, error) {
	handle, err := c.Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	addrs, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", c.ns.Name(), err)
	}
	all := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		all[i] = Prefix(a.IPNet).Addr().Unmap()
	}
	return all, nil
}

// FirstLocal returns the first of some addresses that is one of the namespace; the zero value if none is.
func (c Conn) FirstLocal(addrs []netip.Addr) (netip.Addr, error) {
	handle, err := c.Handle()
	if err != nil {
		return netip.Addr{}, err
	}
	defer handle.Close()
	for _, addr := range addrs {
		if isLocal(handle.RouteGet(addr.AsSlice())) {
			return addr, nil
		}
	}
	return netip.Addr{}, nil
}
