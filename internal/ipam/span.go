// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"iter"
	"net/netip"
	"slices"
)

// span is the addresses from first to last, both included. Working on spans, an exclusion of 2^64 addresses costs no
// more than one of a single address.
type span struct{ first, last netip.Addr }

func (s span) contains(addr netip.Addr) bool {
	return addr.IsValid() && s.first.Compare(addr) <= 0 && addr.Compare(s.last) <= 0
}

func (s span) overlaps(other span) bool {
	return s.contains(other.first) || other.contains(s.first)
}

// whole is all of a prefix.
func whole(p netip.Prefix) span {
	first := p.Masked().Addr()
	bytes := first.AsSlice()
	for bit := p.Bits(); bit < first.BitLen(); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return span{first, last}
}

// usable is the addresses of a subnet that a host or a router can have.
func usable(subnet netip.Prefix) span {
	s := whole(subnet)
	if subnet.Bits() >= s.first.BitLen()-1 {
		return s
	}
	s.first = s.first.Next()
	if s.first.Is4() {
		s.last = s.last.Prev()
	}
	return s
}

// without is the spans less the hole.
func without(spans []span, hole span) []span {
	var left []span
	for _, s := range spans {
		if !s.overlaps(hole) {
			left = append(left, s)
			continue
		}
		if s.first.Less(hole.first) {
			left = append(left, span{s.first, hole.first.Prev()})
		}
		if hole.last.Less(s.last) {
			left = append(left, span{hole.last.Next(), s.last})
		}
	}
	return left
}

// behind yields each address of the spans once: first those behind last, then from the start up to last. If last is in
// none of them, it begins with the first.
func behind(spans []span, last netip.Addr) iter.Seq[netip.Addr] {
	if at := slices.IndexFunc(spans, func(s span) bool { return s.contains(last) }); at >= 0 {
		turned := []span{}
		if here := spans[at]; last != here.last {
			turned = append(turned, span{last.Next(), here.last})
		}
		turned = append(append(turned, spans[at+1:]...), spans[:at]...)
		spans = append(turned, span{spans[at].first, last})
	}
	return func(yield func(netip.Addr) bool) {
		for _, s := range spans {
			for addr := s.first; s.contains(addr); addr = addr.Next() {
				if !yield(addr) {
					return
				}
			}
		}
	}
}
