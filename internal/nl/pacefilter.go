// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsact is where filters hang that see all that a device sends or gets.
func clsact(link netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// paceFilter is the filter of a device that has the program.
func paceFilter(link netlink.Link, fd int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS,
			Handle: 1, Priority: paceMajor, Protocol: unix.ETH_P_ALL,
		},
		Fd: fd, Name: "mustang", DirectAction: true,
	}
}

// removeIdle removes a device's clsact if no filter hangs there any more.
func removeIdle(handle *netlink.Handle, link netlink.Link) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := Dump(func() ([]netlink.Filter, error) { return handle.FilterList(link, parent) })
		if err != nil || len(filters) > 0 {
			return err
		}
	}
	return gone(handle.QdiscDel(clsact(link)))
}

// gone forgives that what is to be removed is not there: EINVAL is the kernel's word
// for no clsact.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
