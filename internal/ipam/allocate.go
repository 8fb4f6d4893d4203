// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
)

// allocate selects addresses for o. It removes leases of earlier boots, and otherwise changes the cursors only.
func (s *Store) allocate(o Owner, pools []pool) ([]Lease, error) {
	c, err := s.readCursors()
	if err != nil {
		return nil, err
	}
	taken, err := s.list()
	if err != nil {
		return nil, err
	}
	if c.boot != s.Boot {
		stale := func(l Lease) bool { return !s.read(&l) }
		for _, l := range taken {
			if err == nil && stale(l) {
				err = s.remove(l.file())
			}
		}
		if c.boot, taken = s.Boot, slices.DeleteFunc(taken, stale); err != nil {
			return nil, err
		}
	}
	if i := slices.IndexFunc(taken, func(l Lease) bool { return l.Owner == o }); i >= 0 {
		return nil, fmt.Errorf("%s already reserved: %w", taken[i].Address, fs.ErrExist)
	}
	owners := ownersOf(taken)
	leases := make([]Lease, len(pools))
	for i, p := range pools {
		addr, err := p.pick(owners, c.last(p))
		if err != nil {
			return nil, err
		}
		c.advance(p, addr)
		leases[i] = p.lease(o, addr)
	}
	return leases, s.write(cursorFile, c.String())
}

// pick returns the requested address of the pool, or the first free one after last.
func (p pool) pick(taken map[netip.Addr]Owner, last netip.Addr) (netip.Addr, error) {
	if by, found := taken[p.requested]; found {
		return netip.Addr{}, fmt.Errorf("%s is in use by %s", p.requested, by)
	}
	if p.requested.IsValid() {
		return p.requested, nil
	}
	used := 0
	for addr := range addressesAfter(p.free, last) {
		if _, found := taken[addr]; !found {
			return addr, nil
		}
		used++
	}
	return netip.Addr{}, &FullError{Ranges: p.set, InUse: used}
}

// cursorFile holds the boot and the last address of each pool, one on a line. If it is lost, allocation starts again from the
// first address.
const cursorFile = ".last"

// maxCursors bounds the addresses of the file: those of pools that no configuration has any more stay in it.
const maxCursors = 64

type cursors struct {
	boot  string
	addrs []netip.Addr
}

func (s *Store) readCursors() (c cursors, err error) {
	data, err := s.content(cursorFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return parseCursors(string(data)), err
}

// parseCursors ignores lines that are not addresses.
func parseCursors(text string) (c cursors) {
	for i, line := range strings.Fields(text) {
		if i == 0 {
			c.boot = line
		} else if addr, err := netip.ParseAddr(line); err == nil && len(c.addrs) < maxCursors {
			c.addrs = append(c.addrs, addr)
		}
	}
	return c
}

// last returns the address that the pool assigned last.
func (c *cursors) last(p pool) netip.Addr {
	if i := slices.IndexFunc(c.addrs, p.has); i >= 0 {
		return c.addrs[i]
	}
	return netip.Addr{}
}

// advance makes addr the pool's last address.
func (c *cursors) advance(p pool, addr netip.Addr) {
	c.addrs = append(slices.DeleteFunc(c.addrs, p.has), addr)
	c.addrs = c.addrs[max(0, len(c.addrs)-maxCursors):]
}

func (c cursors) String() string {
	text := c.boot + "\n"
	for _, addr := range c.addrs {
		text += addr.String() + "\n"
	}
	return text
}

// releaseFormer releases the leases of o that an earlier version has written: a record named after the owner, with a hard link
// named after each address.
func (s *Store) releaseFormer(o Owner) error {
	name := o.ContainerID + separator + o.IfName
	data, err := s.content(name)
	if err != nil {
		return nil // as of all owners of this version
	}
	var record struct{ Leases []Lease }
	_ = json.Unmarshal(data, &record)
	for _, l := range record.Leases {
		if err := s.remove(l.Address.String()); err != nil {
			return err
		}
	}
	return s.remove(name)
}
