// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// pool is a range set, prepared for the allocation of one address.
type pool struct {
	set       RangeSet   // as configured
	ranges    RangeSet   // with defaults
	free      []interval // the addresses that can be reserved, in the order of the ranges
	requested netip.Addr // the only acceptable address, if valid
}

// preparePools validates the sets and prepares their pools. It reads no files.
func preparePools(sets []RangeSet, requested []netip.Addr) ([]pool, error) {
	if err := validateSets(sets); err != nil {
		return nil, err
	}
	pools := make([]pool, len(sets))
	var excluded []interval
	for i, set := range sets {
		pools[i].set = set
		for _, r := range set {
			r = r.withDefaults()
			pools[i].ranges = append(pools[i].ranges, r)
			excluded = append(excluded, r.excluded()...)
		}
	}
	excluded = merge(excluded)
	for i := range pools {
		for _, r := range pools[i].ranges {
			pools[i].free = append(pools[i].free, r.intervals(excluded)...)
		}
		if len(pools[i].free) == 0 {
			return nil, fmt.Errorf("ranges %s: no address is left", pools[i].set)
		}
	}
	return pools, assignRequested(pools, requested)
}

func validateSets(sets []RangeSet) error {
	if len(sets) == 0 {
		return errors.New("no ranges")
	}
	var seen []Range
	for _, set := range sets {
		if len(set) == 0 {
			return errors.New("empty range set")
		}
		for _, r := range set {
			if err := r.Validate(); err != nil {
				return err
			}
			if r.Subnet.Addr().Is4() != set[0].Subnet.Addr().Is4() {
				return fmt.Errorf("ranges %s and %s of one set are of different families", set[0], r)
			}
			for _, other := range seen {
				if r.bounds().overlaps(other.bounds()) {
					return fmt.Errorf("ranges %s and %s overlap", other, r)
				}
			}
			seen = append(seen, r)
		}
	}
	return nil
}

// assignRequested assigns each requested address to the pool that has it.
func assignRequested(pools []pool, requested []netip.Addr) error {
	for _, addr := range requested {
		addr = addr.Unmap()
		i := slices.IndexFunc(pools, func(p pool) bool { return p.has(addr) })
		if i < 0 {
			var all RangeSet
			for _, p := range pools {
				all = append(all, p.set...)
			}
			return fmt.Errorf("%s is not available in %s", addr, all)
		}
		p := &pools[i]
		if p.requested.IsValid() && p.requested != addr {
			return fmt.Errorf("both %s and %s are requested of %s, which assigns one address", p.requested, addr, p.set)
		}
		p.requested = addr
	}
	return nil
}

func (p pool) has(addr netip.Addr) bool {
	return addr.Zone() == "" && slices.ContainsFunc(p.free, func(s interval) bool { return s.contains(addr) })
}

// lease returns the lease of one of the pool's addresses.
func (p *pool) lease(o Owner, addr netip.Addr) Lease {
	i := slices.IndexFunc(p.ranges, func(r Range) bool { return r.bounds().contains(addr) })
	return Lease{Owner: o, Address: addr, Subnet: p.ranges[i].Subnet, Gateway: p.ranges[i].Gateway}
}

// interval is the addresses from first to last, both included. Its operations take the same time for any size.
type interval struct{ first, last netip.Addr }

func (s interval) contains(addr netip.Addr) bool {
	return addr.IsValid() && s.first.Compare(addr) <= 0 && addr.Compare(s.last) <= 0
}

func (s interval) overlaps(other interval) bool {
	return s.contains(other.first) || other.contains(s.first)
}

// intervalOf returns all addresses of a prefix.
func intervalOf(p netip.Prefix) interval {
	first := p.Masked().Addr()
	bytes := first.AsSlice()
	for bit := p.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return interval{first, last}
}

// usable returns the addresses of a subnet that hosts and routers can have.
func usable(subnet netip.Prefix) interval {
	s := intervalOf(subnet)
	if subnet.Bits() >= s.first.BitLen()-1 {
		return s
	}
	s.first = s.first.Next()
	if s.first.Is4() {
		s.last = s.last.Prev()
	}
	return s
}

// merge sorts intervals and joins those that overlap.
func merge(all []interval) []interval {
	all = slices.SortedFunc(slices.Values(all), func(a, b interval) int {
		return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last))
	})
	var out []interval
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].contains(s.first) {
			if out[n-1].last.Less(s.last) {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// without returns the parts of s outside of the excluded intervals, which are merged. Its time depends on those within
// s.
func (s interval) without(excluded []interval) (out []interval) {
	first, _ := slices.BinarySearchFunc(excluded, s.first,
		func(hole interval, addr netip.Addr) int { return hole.last.Compare(addr) })
	for _, hole := range excluded[first:] {
		if s.last.Less(hole.first) {
			break
		}
		if s.first.Less(hole.first) {
			out = append(out, interval{s.first, hole.first.Prev()})
		}
		if !hole.last.Less(s.last) {
			return out
		}
		s.first = hole.last.Next()
	}
	return append(out, s)
}

// addressesAfter yields each address once: first those after last, then from the start up to last. If no interval
// contains last, it starts with the first address.
func addressesAfter(intervals []interval, last netip.Addr) iter.Seq[netip.Addr] {
	if i := slices.IndexFunc(intervals, func(s interval) bool { return s.contains(last) }); i >= 0 {
		rotated := []interval{}
		if s := intervals[i]; last != s.last {
			rotated = append(rotated, interval{last.Next(), s.last})
		}
		rotated = append(append(rotated, intervals[i+1:]...), intervals[:i]...)
		intervals = append(rotated, interval{intervals[i].first, last})
	}
	return func(yield func(netip.Addr) bool) {
		for _, s := range intervals {
			for addr := s.first; s.contains(addr); addr = addr.Next() {
				if !yield(addr) {
					return
				}
			}
		}
	}
}

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

// cursorFile holds the boot and the last address of each pool, one on a line. If it is lost, allocation starts again
// from the first address.
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
