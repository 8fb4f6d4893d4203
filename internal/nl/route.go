// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// AddRoute adds a route to dst by the next hop via, which is on a network of
// one of n's devices.
func (n *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error {
	fail := func(err error) error {
		return fmt.Errorf("add route to %v via %v in network namespace %q: %w", dst, via, n.Name(), err)
	}
	handle, err := n.Netlink()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	route := &netlink.Route{
		Dst: &net.IPNet{IP: dst.Masked().Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  via.AsSlice(),
	}
	if err := handle.RouteAdd(route); err != nil {
		return fail(err)
	}
	return nil
}
