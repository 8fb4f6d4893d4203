// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// pool is a set, made ready to take an address out of it.
type pool struct {
	set    RangeSet // as it was configured
	filled RangeSet
	spans  []span     // what may be given out, in the order of the ranges
	wanted netip.Addr // the only one that will do, if valid
}

// plan checks the sets and what is wanted out of them, and makes them ready. It touches no file.
func plan(sets []RangeSet, wanted []netip.Addr) ([]pool, error) {
	if err := validate(sets); err != nil {
		return nil, err
	}
	pools := make([]pool, len(sets))
	var holes []span
	for i, set := range sets {
		pools[i].set = set
		for _, r := range set {
			full := r.filled()
			pools[i].filled = append(pools[i].filled, full)
			holes = append(holes, full.holes()...)
		}
	}
	for i := range pools {
		for _, r := range pools[i].filled {
			pools[i].spans = append(pools[i].spans, r.spans(holes)...)
		}
		if len(pools[i].spans) == 0 {
			return nil, fmt.Errorf("ranges %s: no address is left to give out", pools[i].set)
		}
	}
	return pools, pin(pools, wanted)
}

func validate(sets []RangeSet) error {
	if len(sets) == 0 {
		return errors.New("there are no ranges")
	}
	var seen []Range
	for _, set := range sets {
		if len(set) == 0 {
			return errors.New("a set of ranges is empty")
		}
		for _, r := range set {
			if err := r.Validate(); err != nil {
				return err
			}
			if r.Subnet.Addr().Is4() != set[0].Subnet.Addr().Is4() {
				return fmt.Errorf("ranges %s and %s are of two families, but in one set", set[0], r)
			}
			for _, other := range seen {
				if r.reach().overlaps(other.reach()) {
					return fmt.Errorf("ranges %s and %s overlap", other, r)
				}
			}
			seen = append(seen, r)
		}
	}
	return nil
}

// reach is all that lies between start and end.
func (r Range) reach() span {
	full := r.filled()
	return span{full.Start, full.End}
}

// pin gives each wanted address to the pool that has it.
func pin(pools []pool, wanted []netip.Addr) error {
	for _, addr := range wanted {
		addr = addr.Unmap()
		of := slices.IndexFunc(pools, func(p pool) bool { return p.has(addr) })
		if of < 0 {
			outside := &OutsideError{Address: addr}
			for _, p := range pools {
				outside.Ranges = append(outside.Ranges, p.set...)
			}
			return outside
		}
		p := &pools[of]
		if p.wanted.IsValid() && p.wanted != addr {
			return fmt.Errorf("both %s and %s are wanted out of %s, which gives one", p.wanted, addr, p.set)
		}
		p.wanted = addr
	}
	return nil
}

func (p pool) has(addr netip.Addr) bool {
	return addr.Zone() == "" && slices.ContainsFunc(p.spans, func(s span) bool { return s.contains(addr) })
}

// lease is what o gets with one of the pool's addresses.
func (p *pool) lease(o Owner, addr netip.Addr) Lease {
	of := slices.IndexFunc(p.filled, func(r Range) bool { return r.reach().contains(addr) })
	return Lease{Owner: o, Address: addr, Subnet: p.filled[of].Subnet, Gateway: p.filled[of].Gateway}
}
