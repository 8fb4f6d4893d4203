// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Range is the part of a subnet from Start to End. Never reserved are gateways, Exclude, the network and the broadcast
// address of IPv4, and the first address of IPv6 (RFC 4291, 2.6.1). A subnet of two addresses has only the gateway (RFC
// 3021, RFC 6164).
type Range struct {
	Subnet netip.Prefix `json:"subnet" want:"a prefix like 10.88.0.0/16"`
	// Start and End default to the first and the last usable address of Subnet.
	Start netip.Addr `json:"rangeStart,omitzero" want:"an address"`
	End   netip.Addr `json:"rangeEnd,omitzero" want:"an address"`
	// Gateway defaults to the first usable address of Subnet. It can be outside of it, such as fe80::1.
	Gateway netip.Addr `json:"gateway,omitzero" want:"an address"`
	// Exclude holds addresses that no range of the set assigns.
	Exclude []netip.Prefix `json:"exclude,omitempty" want:"an array of prefixes" max:"1024"`
}

// RangeSet is one or more ranges of one subnet with one gateway. A pod gets one address from each set.
type RangeSet []Range

// String returns the subnet, with Start and End if they are set: "10.1.0.10-10.1.0.20 of 10.1.0.0/24".
func (r Range) String() string {
	if !r.Start.IsValid() && !r.End.IsValid() {
		return r.Subnet.String()
	}
	r = r.WithDefaults()
	return fmt.Sprintf("%s-%s of %s", r.Start, r.End, r.Subnet)
}

// String lists the ranges.
func (set RangeSet) String() string {
	var names []string
	for _, r := range set {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// WithDefaults sets the zero values of a range with a valid subnet.
func (r Range) WithDefaults() Range {
	all := usable(r.Subnet)
	if !r.Start.IsValid() {
		r.Start = all.first
	}
	if !r.End.IsValid() {
		r.End = all.last
	}
	if !r.Gateway.IsValid() {
		r.Gateway = all.first
	}
	return r
}

// Usable reports whether a host or router of a subnet can use an address.
func Usable(subnet netip.Prefix, addr netip.Addr) bool { return usable(subnet).contains(addr) }

func (r Range) validate() error {
	switch {
	case r.Subnet.Addr().Is4In6():
		return fmt.Errorf("want the IPv4 subnet %s without ::ffff", r.Subnet)
	case r.Subnet != r.Subnet.Masked():
		return fmt.Errorf("the subnet %s has host bits set; want %s", r.Subnet, r.Subnet.Masked())
	case !r.Subnet.Contains(r.Start):
		return fmt.Errorf("the start %s is not in %s", r.Start, r.Subnet)
	case !r.Subnet.Contains(r.End):
		return fmt.Errorf("the end %s is not in %s", r.End, r.Subnet)
	case r.End.Less(r.Start):
		return fmt.Errorf("the start %s is after the end %s", r.Start, r.End)
	case r.Gateway.Is4() != r.Subnet.Addr().Is4() || r.Gateway.Is4In6() || r.Gateway.Zone() != "":
		return fmt.Errorf("the gateway %s is not an address of the family of %s", r.Gateway, r.Subnet)
	}
	for _, p := range r.Exclude {
		if !p.IsValid() || !p.Overlaps(r.Subnet) {
			return fmt.Errorf("the exclusion %s is not in %s", p, r.Subnet)
		}
	}
	return nil
}

// Validate checks the ranges: there is one set at most for each family, a set has one subnet and one gateway, no two
// ranges overlap, and each has an address to assign. The error begins with the position, like "[0][1]: ".
func Validate(sets []RangeSet) error {
	_, err := newPools(sets)
	return err
}

// pool is a range set, prepared for the allocation of one address.
type pool struct {
	set       RangeSet
	subnet    netip.Prefix
	gateway   netip.Addr
	free      []interval // the addresses that can be reserved, in the order of the ranges
	requested netip.Addr // the only acceptable address, if valid
}

func newPools(sets []RangeSet) (pools []pool, err error) {
	if len(sets) == 0 {
		return nil, errors.New(": want at least one set of ranges")
	}
	for i, set := range sets {
		p, err := newPool(set)
		if err != nil {
			return nil, fmt.Errorf("[%d]%w", i, err)
		}
		if slices.ContainsFunc(pools, func(o pool) bool { return o.subnet.Addr().Is4() == p.subnet.Addr().Is4() }) {
			return nil, fmt.Errorf("[%d]: %v is the second set of its family", i, p.subnet)
		}
		pools = append(pools, p)
	}
	return pools, nil
}

func newPool(set RangeSet) (p pool, err error) {
	if len(set) == 0 {
		return p, errors.New(": want at least one range")
	}
	ranges := slices.Clone(set)
	var excluded []interval
	for i, r := range ranges {
		if !r.Subnet.IsValid() {
			return p, fmt.Errorf("[%d]: a range lacks a subnet", i)
		}
		ranges[i] = r.WithDefaults()
		if err := ranges[i].validate(); err != nil {
			return p, fmt.Errorf("[%d]: range %s: %w", i, r, err)
		}
		for _, e := range r.Exclude {
			excluded = append(excluded, intervalOf(e))
		}
	}
	p = pool{set: set, subnet: ranges[0].Subnet, gateway: ranges[0].Gateway}
	excluded = merge(append(excluded, interval{p.gateway, p.gateway}))
	for i, r := range ranges {
		if r.Subnet != p.subnet || r.Gateway != p.gateway {
			return p, fmt.Errorf(": want one subnet and one gateway in all ranges of a set, got %v (%v) and %v (%v)", p.subnet,
				p.gateway, r.Subnet, r.Gateway)
		}
		for j, other := range ranges[:i] {
			if (interval{r.Start, r.End}).contains(other.Start) || (interval{other.Start, other.End}).contains(r.Start) {
				return p, fmt.Errorf(": ranges %s and %s overlap", set[j], set[i])
			}
		}
		free := interval{r.Start, r.End}.and(usable(r.Subnet)).without(excluded)
		if len(free) == 0 {
			return p, fmt.Errorf("[%d]: range %s: no address is left", i, set[i])
		}
		p.free = append(p.free, free...)
	}
	return p, nil
}

func request(pools []pool, requested []netip.Addr) error {
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

// interval is the addresses from first to last, both included.
type interval struct{ first, last netip.Addr }

func (s interval) contains(addr netip.Addr) bool {
	return addr.IsValid() && s.first.Compare(addr) <= 0 && addr.Compare(s.last) <= 0
}

// and returns the common part. If there is none, the first address is after the last.
func (s interval) and(other interval) interval {
	if s.first.Less(other.first) {
		s.first = other.first
	}
	if other.last.Less(s.last) {
		s.last = other.last
	}
	return s
}

func intervalOf(p netip.Prefix) interval {
	first := p.Masked().Addr()
	bytes := first.AsSlice()
	for bit := p.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return interval{first, last}
}

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

func merge(all []interval) (out []interval) {
	slices.SortFunc(all, func(a, b interval) int { return a.first.Compare(b.first) })
	for _, s := range all {
		if n := len(out); n == 0 || !out[n-1].contains(s.first) {
			out = append(out, s)
		} else if out[n-1].last.Less(s.last) {
			out[n-1].last = s.last
		}
	}
	return out
}

// without returns the parts of s outside of the excluded intervals, which must be merged.
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
	if s.contains(s.last) {
		out = append(out, s)
	}
	return out
}

// addressesAfter yields each address once: first the addresses after last, if an interval contains it.
func addressesAfter(intervals []interval, last netip.Addr) iter.Seq[netip.Addr] {
	if i := slices.IndexFunc(intervals, func(s interval) bool { return s.contains(last) }); i >= 0 {
		after, before := interval{last.Next(), intervals[i].last}, interval{intervals[i].first, last}
		intervals = slices.Concat([]interval{after}, intervals[i+1:], intervals[:i], []interval{before})
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
