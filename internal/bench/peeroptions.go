// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"net"
	"net/netip"

	"mustang/internal/lab"
)

// PeerOptions describe another machine that servers run on.
type PeerOptions struct {
	// Shell is the command line that runs a command there, such as
	// {"ssh", "root@10.0.0.1"}; see [load.AgentOptions].
	Shell []string
	// Program is the name of mustang there; empty means "mustang".
	Program string
	// Address is the address there that clients connect to.
	Address netip.Addr
	// CPU is the CPU there that the server is pinned to; negative means none.
	CPU int
	// Uplink, if not zero, is the device on this machine that leads to the peer. Labs
	// whose rows start in a pod share it.
	Uplink lab.UplinkDevice
}

// notes are remarks on all rows.
func (o PeerOptions) notes() []string {
	notes := []string{"The server was another machine (--peer). CPU time is of the measuring machine: " +
		"the peer's of streams, this one's of request/response."}
	if o.Uplink != (lab.UplinkDevice{}) {
		notes = append(notes, fmt.Sprintf("Rows from a pod use a macvlan device on %s (--uplink), which is part of their cost; "+
			"those from this machine itself use %[1]s alone.", o.Uplink.Name))
	}
	return notes
}

// check returns an error if the uplink does not lead to the peer, or can't be shared. It
// changes nothing.
func (o PeerOptions) check() error {
	if o.Uplink == (lab.UplinkDevice{}) {
		return nil
	}
	if err := o.Uplink.Check(); err != nil {
		return err
	}
	peer, network := o.Address.Unmap(), o.Uplink.Host.Masked()
	switch {
	case !network.Contains(peer):
		return fmt.Errorf("peer %s: not in %s, the network of the uplink addresses", peer, network)
	case peer == o.Uplink.Host.Addr() || peer == o.Uplink.Pod.Addr():
		return fmt.Errorf("uplink address %s: the same as the peer's", peer)
	}
	device, err := net.InterfaceByName(o.Uplink.Name)
	switch {
	case err != nil:
		return fmt.Errorf("uplink %q: no such device", o.Uplink.Name)
	case device.Flags&net.FlagUp == 0:
		return fmt.Errorf("uplink %s: the device is down", device.Name)
	case len(device.HardwareAddr) != 6:
		return fmt.Errorf("uplink %s: not an Ethernet device", device.Name)
	}
	addrs, err := device.Addrs()
	if err != nil {
		return fmt.Errorf("uplink %s: list its addresses: %w", device.Name, err)
	}
	if !contains(addrs, func(p netip.Prefix) bool { return p.Masked() == network }) {
		return fmt.Errorf("uplink %s: no address in %s, the network of the uplink addresses", device.Name, network)
	}
	if addrs, err = net.InterfaceAddrs(); err != nil {
		return fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, own := range []netip.Prefix{o.Uplink.Host, o.Uplink.Pod} {
		if contains(addrs, func(p netip.Prefix) bool { return p.Addr() == own.Addr() }) {
			return fmt.Errorf("uplink address %s: already an address of this machine", own)
		}
	}
	return nil
}

// contains reports whether one of the addresses fits.
func contains(addrs []net.Addr, fits func(netip.Prefix) bool) bool {
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil && fits(prefix) {
			return true
		}
	}
	return false
}
