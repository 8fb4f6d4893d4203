// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// permutation is the order in which a backend takes the entries of a table. Maglev's orders, multiples of a number
// modulo a prime, fail if a turn can be lost: of two backends with equal numbers, one would lose all turns.
type permutation struct {
	seed                        uint64
	mask                        uint64
	half                        uint // of the bits of mask, rounded up
	first, second               uint64
	firstInverse, secondInverse uint64
}

// newPermutation returns the order of a backend in a table whose length is a power of two.
func newPermutation(seed uint64, entries int) permutation {
	p := permutation{seed: seed, mask: uint64(entries - 1)}
	p.half = uint(bits.Len64(p.mask)+1) / 2
	p.first, p.second = mix(seed+1)|1, mix(seed+2)|1
	p.firstInverse, p.secondInverse = inverse(p.first), inverse(p.second)
	return p
}

func (p *permutation) at(turn uint64) uint64 {
	x := (turn + p.seed) * p.first & p.mask
	return (x ^ x>>p.half) * p.second & p.mask
}

// turnOf returns the turn of an entry: it reverses at.
func (p *permutation) turnOf(entry uint64) uint64 {
	x := entry * p.secondInverse & p.mask
	return ((x^x>>p.half)*p.firstInverse - p.seed) & p.mask
}

// inverse returns the number whose product with the odd x is 1 modulo 2^64: Newton's method doubles the number of right
// bits, of which x has three.
func inverse(x uint64) uint64 {
	y := x
	for range 5 {
		y *= 2 - x*y
	}
	return y
}

// hash returns the seed of a backend. It must never change: all nodes have to agree.
func hash(addr netip.AddrPort) uint64 {
	a := addr.Addr().As16()
	h := mix(binary.BigEndian.Uint64(a[:8]))
	h = mix(h ^ binary.BigEndian.Uint64(a[8:]))
	return mix(h ^ uint64(addr.Port()))
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
