// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
)

// Free is nil if Reserve would find an address in each set, and otherwise the error that it would return: those of
// [Validate], or *[FullError]. It changes nothing.
func (s *Store) Free(sets []RangeSet) error {
	pools, err := plan(sets, nil)
	if err != nil {
		return fmt.Errorf("look for free addresses: %w", err)
	}
	leases, err := s.Leases()
	if err != nil {
		return err
	}
	taken := make(map[netip.Addr]bool, len(leases))
	for _, lease := range leases {
		taken[lease.Address] = true
	}
	for _, p := range pools {
		if !p.hasOther(taken) {
			return &FullError{Ranges: p.set, InUse: len(taken)}
		}
	}
	return nil
}

// hasOther says whether the pool has an address that is not taken.
func (p pool) hasOther(taken map[netip.Addr]bool) bool {
	for addr := range behind(p.spans, netip.Addr{}) {
		if !taken[addr] {
			return true
		}
	}
	return false
}
