// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"iter"
	"net/netip"
	"slices"
)

// interval is the addresses from first to last, both included.
type interval struct{ first, last netip.Addr }

func (s interval) contains(addr netip.Addr) bool {
	return addr.IsValid() && s.first.Compare(addr) <= 0 && addr.Compare(s.last) <= 0
}

func (s interval) overlaps(other interval) bool {
	return s.contains(other.first) || other.contains(s.first)
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
