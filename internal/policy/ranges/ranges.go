// SPDX-License-Identifier: Apache-2.0

// Package ranges finds which ranges of addresses an address is in. A range is a prefix without some prefixes inside it, as a block of a policy. A look-up
// costs one step for each length that prefixes have.
package ranges

import (
	"net/netip"
	"slices"
)

// Set is ranges, each of somebody. New makes one.
type Set[T comparable] struct {
	in, out map[netip.Prefix][]T // whose ranges a prefix is, and whose it is left out of
	lengths [2][129]int          // how many prefixes of in and out have a length, of IPv4 and IPv6
}

// New returns an empty set.
func New[T comparable]() *Set[T] {
	return &Set[T]{in: map[netip.Prefix][]T{}, out: map[netip.Prefix][]T{}}
}

// Add adds a range.
func (s *Set[T]) Add(of T, cidr netip.Prefix, except []netip.Prefix) {
	s.list(s.in, cidr, of)
	for _, e := range except {
		s.list(s.out, e, of)
	}
}

// Remove undoes an Add.
func (s *Set[T]) Remove(of T, cidr netip.Prefix, except []netip.Prefix) {
	s.unlist(s.in, cidr, of)
	for _, e := range except {
		s.unlist(s.out, e, of)
	}
}

func (s *Set[T]) list(m map[netip.Prefix][]T, p netip.Prefix, add T) {
	if m[p] == nil {
		s.lengths[family(p.Addr())][p.Bits()]++
	}
	m[p] = append(m[p], add)
}

func (s *Set[T]) unlist(m map[netip.Prefix][]T, p netip.Prefix, gone T) {
	if i := slices.Index(m[p], gone); i >= 0 {
		m[p] = slices.Delete(m[p], i, i+1)
	}
	if _, had := m[p]; had && len(m[p]) == 0 {
		delete(m, p)
		s.lengths[family(p.Addr())][p.Bits()]--
	}
}

// Ends returns how many prefixes there are at which a range begins or ends, or somewhat more.
func (s *Set[T]) Ends() int { return len(s.in) + len(s.out) }

// HasIPv6 reports whether there are ranges of IPv6.
func (s *Set[T]) HasIPv6() bool {
	return slices.ContainsFunc(s.lengths[1][:], func(n int) bool { return n > 0 })
}

// Divides reports whether a range begins or ends at a prefix.
func (s *Set[T]) Divides(p netip.Prefix) bool { return s.in[p] != nil || s.out[p] != nil }

// Around returns the prefixes at which ranges begin or end and that a prefix lies in, the longest last.
func (s *Set[T]) Around(p netip.Prefix) (at []netip.Prefix) {
	for bits, n := range s.lengths[family(p.Addr())][:p.Bits()+1] {
		if n == 0 {
			continue
		}
		if q := netip.PrefixFrom(p.Addr(), bits).Masked(); s.Divides(q) {
			at = append(at, q)
		}
	}
	return at
}

// Of returns whose ranges an address is in that is in some prefixes, which Around has returned.
func (s *Set[T]) Of(around []netip.Prefix) (all []T) {
	for _, q := range around {
		all = append(all, s.in[q]...)
		if out := s.out[q]; len(out) > 0 { // an exception lies inside its range, so it comes later
			gone := make(map[T]bool, len(out))
			for _, o := range out {
				gone[o] = true
			}
			all = slices.DeleteFunc(all, func(of T) bool { return gone[of] })
		}
	}
	return all
}

// Overlaps returns how many pairs there are of a range, and a prefix at which one begins or ends that lies in it or is left out of it.
func (s *Set[T]) Overlaps() (n int) {
	count := func(p netip.Prefix) {
		for _, q := range s.Around(p) {
			n += len(s.in[q])
		}
	}
	for p := range s.in {
		count(p)
	}
	for p := range s.out {
		if s.in[p] == nil {
			count(p)
		}
	}
	return n
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
