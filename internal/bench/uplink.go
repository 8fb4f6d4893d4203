// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net"
	"net/netip"

	"mustang/internal/lab"
)

// check refuses an uplink that does not lead to the peer, or can't be shared. It
// only asks the kernel.
func (o PeerOptions) check() error {
	if o.Uplink == (lab.Parent{}) {
		return nil
	}
	if err := o.Uplink.Check(); err != nil {
		return err
	}
	peer, network := o.Address.Addr().Unmap(), o.Uplink.Host.Masked()
	switch {
	case !network.Contains(peer):
		return fmt.Errorf("peer %s: it is not in %s, the network of the uplink addresses", peer, network)
	case peer == o.Uplink.Host.Addr() || peer == o.Uplink.Pod.Addr():
		return fmt.Errorf("uplink address %s: it is the peer's", peer)
	}
	device, err := net.InterfaceByName(o.Uplink.Device)
	switch {
	case err != nil:
		return fmt.Errorf("uplink %q: there is no such device here", o.Uplink.Device)
	case device.Flags&net.FlagUp == 0:
		return fmt.Errorf("uplink %s: it is not up", device.Name)
	case len(device.HardwareAddr) != 6:
		return fmt.Errorf("uplink %s: it is no Ethernet device", device.Name)
	}
	addrs, err := device.Addrs()
	if err != nil {
		return fmt.Errorf("uplink %s: list its addresses: %w", device.Name, err)
	}
	if !contains(addrs, func(p netip.Prefix) bool { return p.Masked() == network }) {
		return fmt.Errorf("uplink %s: it has no address in %s, the network of the uplink addresses", device.Name, network)
	}
	if addrs, err = net.InterfaceAddrs(); err != nil {
		return fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, own := range []netip.Prefix{o.Uplink.Host, o.Uplink.Pod} {
		if contains(addrs, func(p netip.Prefix) bool { return p.Addr() == own.Addr() }) {
			return fmt.Errorf("uplink address %s: this machine has it already", own)
		}
	}
	return nil
}

// contains reports whether one of a machine's addresses fits.
func contains(addrs []net.Addr, fits func(netip.Prefix) bool) bool {
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil && fits(prefix) {
			return true
		}
	}
	return false
}
