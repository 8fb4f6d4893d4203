// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"net"
	"net/netip"
)

// MaxAllowed is the number of prefixes that a pod may use besides its addresses.
const MaxAllowed = 16

// checkAllowed returns an error unless the prefixes can be allowed.
func checkAllowed(prefixes []netip.Prefix) error {
	if len(prefixes) > MaxAllowed {
		return fmt.Errorf("%d allowed addresses: at most %d", len(prefixes), MaxAllowed)
	}
	for _, p := range prefixes {
		if err := CheckAllowed(p); err != nil {
			return err
		}
	}
	return nil
}

// CheckAllowed returns an error unless a pod can be allowed to use a prefix: one without host bits, of unicast
// addresses.
func CheckAllowed(p netip.Prefix) error {
	addr := p.Addr()
	switch {
	case !p.IsValid() || addr.Is4In6() || addr.Zone() != "":
		return fmt.Errorf("allowed address %s: want a prefix", p)
	case p != p.Masked():
		return fmt.Errorf("allowed address %s: has host bits, want %s", p, p.Masked())
	case p.Bits() > 0 && (addr.IsMulticast() || addr.IsLoopback() || addr.IsUnspecified()):
		return fmt.Errorf("allowed address %s: want addresses of hosts", p)
	}
	return nil
}

// linkLocal returns the IPv6 link-local address of a device: the one that it has, or else the one that follows from its
// MAC address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr, addresses []netip.Prefix) netip.Addr {
	for _, p := range addresses {
		if a := p.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
			return a.WithZone("")
		}
	}
	if len(mac) != 6 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}
