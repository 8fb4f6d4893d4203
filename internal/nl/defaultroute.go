// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// AddDefaultRoutes adds default routes by a device in n that is up, one for each
// next hop. Next hops are taken as directly reachable, whatever addresses the
// device has.
func (n *Namespace) AddDefaultRoutes(device string, hops []netip.Addr) error {
	handle, err := n.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %q in network namespace %q: %w", device, n.Name(), err)
	}
	for _, hop := range hops {
		everywhere := &net.IPNet{IP: make(net.IP, hop.BitLen()/8), Mask: make(net.IPMask, hop.BitLen()/8)}
		err := handle.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: everywhere, Gw: hop.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return fmt.Errorf("add default route via %v by device %q in network namespace %q: %w", hop, device, n.Name(), err)
		}
	}
	return nil
}
