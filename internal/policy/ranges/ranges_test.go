// SPDX-License-Identifier: Apache-2.0

package ranges

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

func (b block) has(a netip.Addr) bool {
	return b.cidr.Contains(a) && !slices.ContainsFunc(b.except, func(e netip.Prefix) bool { return e.Contains(a) })
}

// TestOf compares the ranges that addresses are in with those that hold them one by one, while ranges come and go.
func TestOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() block {
		at, bits := netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(3)), byte(r.IntN(4))}), 0
		if r.IntN(4) == 0 {
			at = netip.AddrFrom16([16]byte{0xfd, 1: byte(r.IntN(2)), 15: byte(r.IntN(4))})
			bits = 96
		}
		b := block{cidr: netip.PrefixFrom(at, bits+r.IntN(32)).Masked()}
		for range r.IntN(3) {
			b.except = append(b.except, netip.PrefixFrom(at, min(b.cidr.Bits()+1+r.IntN(8), at.BitLen())).Masked())
		}
		return b
	}
	s, all := New[int](), map[int]block{}
	for n := range 3000 {
		if gone := r.IntN(n + 1); n%3 == 2 && all[gone].cidr.IsValid() {
			s.Remove(gone, all[gone].cidr, all[gone].except)
			delete(all, gone)
		} else {
			all[n] = random()
			s.Add(n, all[n].cidr, all[n].except)
		}
		at := random().cidr.Addr()
		var want []int
		for i, b := range all {
			if b.has(at) {
				want = append(want, i)
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(slices.Values(s.Of(s.Around(netip.PrefixFrom(at, at.BitLen()))))); !slices.Equal(got, want) {
			t.Fatalf("%d: %s is in %v, not in %v", n, at, got, want)
		}
	}
	for i, b := range all {
		s.Remove(i, b.cidr, b.except)
	}
	if s.Ends() != 0 || s.HasIPv6() || s.Overlaps() != 0 || len(s.Around(netip.MustParsePrefix("10.0.0.0/32"))) != 0 {
		t.Errorf("there are %+v", s)
	}
}
