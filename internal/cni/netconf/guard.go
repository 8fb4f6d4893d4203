// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"net/netip"
)

// Values of key sourceGuard.
const (
	sourceGuardOn  = "on"
	sourceGuardOff = "off"
)

// maxAllowed is the number of allowed addresses.
const maxAllowed = 16

// setGuard sets what pods may send from.
func (c *Config) setGuard(guard string, allowed []string) error {
	switch {
	case guard != sourceGuardOn && guard != sourceGuardOff:
		return Invalidf("sourceGuard: want on or off, got %q", guard)
	case guard == sourceGuardOff && len(allowed) > 0:
		return Invalidf("allowedAddresses: without sourceGuard pods send from any address")
	case len(allowed) > maxAllowed:
		return Invalidf("allowedAddresses: %d of them, at most %d", len(allowed), maxAllowed)
	}
	c.SourceGuard = guard == sourceGuardOn
	for _, text := range allowed {
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		addr := prefix.Addr()
		if err != nil || prefix != prefix.Masked() || addr.Is4In6() || addr.Zone() != "" ||
			prefix.Bits() > 0 && (addr.IsMulticast() || addr.IsLoopback() || addr.IsUnspecified()) {
			return Invalidf("allowedAddresses: want an address of hosts, or a prefix of such without host bits, got %q", text)
		}
		c.AllowedAddresses = append(c.AllowedAddresses, prefix)
	}
	return nil
}

// NeedsDatapath reports whether the maps and programs of the datapath are needed.
func (c Config) NeedsDatapath() bool {
	return c.Services != ServicesOff || len(c.Runtime.Ports) > 0 || c.SourceGuard
}
