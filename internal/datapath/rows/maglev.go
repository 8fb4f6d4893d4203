// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// MaglevBlock is the number of entries that the datapath stores in one row. The length of each table is a power of two
// and a multiple of it, so no table needs padding, and a program finds its entry without a division.
const MaglevBlock = 64

const (
	// entriesPerBackend are at least as many as keep the loads of equal backends within some 10 % of each other.
	entriesPerBackend = 160
	minEntries        = 1 << 10
	maxEntries        = 1 << 18
	// deviations is how many standard deviations above its share a backend may have: fewer make loads more equal, and
	// change more when a backend goes.
	deviations = 2.0
)

const free = math.MaxUint16 // an entry that no backend has taken

type turn struct {
	index  uint16  // of the backend
	weight float64 // 0 if it has as many as it may have
	credit float64 // grows by the weight in each round, and pays for turns
	room   int     // how many entries it may take still
	next   uint64  // the turn that comes next
	order  permutation
}

// maglevTable builds a look-up table: a hash of a connection is the index of the entry that names its backend. All
// nodes build the same table from the same backends, so a connection keeps its backend when its packets come through
// another node. When a backend comes or goes, nearly all connections keep their backends.
//
// As in Maglev (Eisenbud et al., NSDI 2016, section 3.4), each backend has its own order of the entries, and the
// backends take entries in turns. In Maglev, a backend whose entry is taken goes on to its next one, so all get
// equally many. Removing a backend then changes entries of all others: 2.6 times its share with 100 backends and
// 10,007 entries. Here the backend loses its turn, as in rendezvous hashing, so only the entries of the removed
// backend change. A limit on the entries of each backend keeps loads close together, and costs some changes.
//
// The entries are indexes of backends, each as often as its weight demands, whatever the order of the backends. The
// caller leaves out backends that get no new connections. The table is nil without backends, and has 64 entries for
// one. Otherwise its length is one of 1,024, 4,096, 16,384, 65,536 and 262,144: the first with 160 entries for each
// backend. If one more backend makes the table longer, most entries change. A backend with less than a hundredth of
// the average weight may get no entry.
func maglevTable(backends []service.Backend) []uint16 {
	if len(backends) == 0 {
		return nil
	}
	table := make([]uint16, maglevEntries(len(backends)))
	if len(backends) == 1 {
		return table
	}
	for i := range table {
		table[i] = free
	}
	turns := newTurns(backends, len(table))
	// The more entries are taken, the more turns are lost. For the last ones it is cheaper to compute the first taker.
	last := len(table) / len(backends)
	for left := len(table); left > last; {
		left -= rounds(turns, table, left-last)
	}
	for i := range table {
		if table[i] == free {
			table[i] = first(turns, uint64(i))
		}
	}
	return table
}

func maglevEntries(n int) int {
	switch n {
	case 0:
		return 0
	case 1:
		return MaglevBlock
	}
	entries := minEntries
	for entries < maxEntries && entries < n*entriesPerBackend {
		entries *= 4
	}
	return entries
}

// rounds lets the backends take turns until they have taken this many entries, or one has as many as it may have. It
// returns how many they took.
func rounds(turns []turn, table []uint16, want int) (taken int) {
	total, price, entries := 0.0, 0.0, float64(len(table))
	for i := range turns {
		total, price = total+turns[i].weight, max(price, turns[i].weight)
	}
	for price > 4*total/float64(len(turns)) {
		price /= 2 // the heaviest has several turns in a round, else most rounds would be without a turn of most others
	}
	for full := false; taken < want && !full; {
		for i := range turns {
			t := &turns[i]
			for t.credit += t.weight; t.credit >= price; {
				// Later turns cost more, as if each drew any entry and repeated draws did not count. Without this, the entries of
				// few backends are not in proportion to their weights.
				t.credit -= price * entries / (entries - float64(t.next))
				entry := &table[t.order.at(t.next)]
				t.next++
				if *entry != free {
					continue
				}
				*entry = t.index
				taken++
				if t.room--; t.room == 0 {
					t.weight, t.credit, full = 0, 0, true
				}
			}
		}
	}
	return taken
}

func first(turns []turn, entry uint64) uint16 {
	best, soonest := uint16(0), math.Inf(1)
	for i := range turns {
		t := &turns[i]
		part := (float64(t.order.turnOf(entry)) + 0.5) / float64(t.order.mask+1)
		if part >= soonest*t.weight {
			continue // the logarithm would be greater still
		}
		if when := -math.Log1p(-part) / t.weight; when < soonest {
			best, soonest = t.index, when
		}
	}
	return best
}

// newTurns returns the backends in an order that depends on them alone.
func newTurns(backends []service.Backend, entries int) []turn {
	turns := make([]turn, len(backends))
	total := 0.0
	for i, b := range backends {
		turns[i] = turn{index: uint16(i), weight: float64(max(b.Weight, 1)), order: newPermutation(hash(b.Addr), entries)}
		total += turns[i].weight
	}
	for i := range turns {
		share := float64(entries) * turns[i].weight / total
		// Half the variance of draws that are independent of each other: later ones find more entries taken. The conversion
		// keeps compilers from a fused operation, which rounds otherwise.
		turns[i].room = int(math.Ceil(share + float64(deviations*math.Sqrt(share/2))))
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.order.seed, b.order.seed) })
	return turns
}

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

// inverse returns the number whose product with the odd x is 1 modulo 2^64: Newton's method starts with the three right
// bits of x, and doubles them each time.
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
