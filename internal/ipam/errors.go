// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
)

// FullError says that a set has no free address.
type FullError struct {
	Ranges RangeSet
	InUse  int // addresses, which is all that the ranges give out
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no address is free in %s: %d in use", e.Ranges, e.InUse)
}

// TakenError says that a wanted address is another's.
type TakenError struct {
	Address netip.Addr
	By      Owner
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s is taken by %s", e.Address, e.By)
}

// OutsideError says that no range gives out a wanted address: it is in none of them, a gateway, or excluded.
type OutsideError struct {
	Address netip.Addr
	Ranges  RangeSet
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("%s is no address that %s gives out", e.Address, e.Ranges)
}

// HasLeasesError says that an owner who wants addresses has some already. It matches [fs.ErrExist].
type HasLeasesError struct {
	Addresses []netip.Addr
}

func (e *HasLeasesError) Error() string {
	names := make([]string, len(e.Addresses))
	for i, addr := range e.Addresses {
		names[i] = addr.String()
	}
	return "it has " + strings.Join(names, ", ") + " already"
}

// Is makes the error match [fs.ErrExist].
func (e *HasLeasesError) Is(target error) bool { return target == fs.ErrExist }
