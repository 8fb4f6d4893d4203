// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// addGateways gives the device the addresses that it lacks, and returns when they
// can be used. If it fails, it has removed those that it added.
func (s side) addGateways(link netlink.Link, addrs []netip.Prefix) (undo func() error, err error) {
	var added []netip.Prefix
	undo = func() error {
		var errs []error
		for _, addr := range added {
			errs = append(errs, s.removeAddress(link, addr))
		}
		return errors.Join(errs...)
	}
	for _, addr := range addrs {
		isNew, err := s.addAddress(link, addr, netlink.SCOPE_UNIVERSE)
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		if isNew {
			added = append(added, addr)
		}
	}
	if err := s.awaitLocal(link, addrs); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// alone returns the addresses of prefixes, each as a prefix of its own (/32 or
// /128).
func alone(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, prefix := range prefixes {
		out = append(out, single(prefix.Addr()))
	}
	return out
}

// single is the prefix that contains only addr.
func single(addr netip.Addr) netip.Prefix {
	return netip.PrefixFrom(addr, addr.BitLen())
}
