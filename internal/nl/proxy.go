// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddProxy makes n answer for an address on the network of a device, at once: the
// address is another's, that n routes to by another device. n must forward.
func (n *Namespace) AddProxy(device string, addr netip.Addr) error {
	fail := func(err error) error {
		return fmt.Errorf("answer for %v at device %q in network namespace %q: %w", addr, device, n.Name(), err)
	}
	if !addr.Is4() {
		return fail(errors.New("it is not an IPv4 address"))
	}
	if err := n.SetSysctl("net/ipv4/neigh/"+device+"/proxy_delay", "0"); err != nil {
		return fail(err)
	}
	handle, err := n.Netlink()
	if err != nil {
		return fail(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(device)
	if err != nil {
		return fail(err)
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY, IP: addr.AsSlice()}
	if err := handle.NeighAdd(entry); err != nil {
		return fail(err)
	}
	return nil
}
