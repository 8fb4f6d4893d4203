// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"net/netip"
	"slices"

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
	addrs, err := dump(c, "addresses", allAddresses)
	const passing = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	var all []Address
	for _, a := range addrs {
		if addr := Prefix(a.IPNet).Addr().Unmap(); addr.IsGlobalUnicast() {
			all = append(all, Address{Index: a.LinkIndex, Addr: addr, Lasting: a.Flags&passing == 0})
		}
	}
	return all, err
}

// Every returns all addresses of the namespace, of loopback devices and link-local ones too. Several devices may have one.
func (c Conn) Every() ([]netip.Addr, error) {
	addrs, err := dump(c, "addresses", allAddresses)
	all := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		all[i] = Prefix(a.IPNet).Addr().Unmap()
	}
	return all, err
}

// FirstLocal returns the first of some addresses that is one of the namespace; the zero value if none is.
func (c Conn) FirstLocal(addrs []netip.Addr) (first netip.Addr, err error) {
	err = c.with(func(handle *netlink.Handle) error {
		local := func(addr netip.Addr) bool { return isLocal(handle.RouteGet(addr.AsSlice())) }
		if i := slices.IndexFunc(addrs, local); i >= 0 {
			first = addrs[i]
		}
		return nil
	})
	return first, err
}
