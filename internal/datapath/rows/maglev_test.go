// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"testing"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

func some(n int, weights ...uint16) []service.Backend {
	backends := make([]service.Backend, n)
	for i := range backends {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		backends[i] = service.Backend{Addr: netip.AddrPortFrom(addr, 8080)}
		if len(weights) > 0 {
			backends[i].Weight = weights[i%len(weights)]
		}
	}
	return backends
}

// changed returns the fraction of the entries that name another backend when one is gone, and the share that it had.
func changed(backends []service.Backend, gone int) (all, own float64) {
	rest := slices.Delete(slices.Clone(backends), gone, gone+1)
	before, after := maglevTable(backends), maglevTable(rest)
	for i, was := range before {
		if int(was) == gone {
			own++
		}
		if backends[was].Addr != rest[after[i%len(after)]].Addr {
			all++
		}
	}
	return all / float64(len(before)), own / float64(len(before))
}

// TestDisruption removes one backend. Only its entries change, and at most a tenth as many others.
func TestDisruption(t *testing.T) {
	for name, backends := range map[string][]service.Backend{
		"3": some(3), "10": some(10), "20": some(20), "50": some(50), "100": some(100), "400": some(400), "500": some(500),
		"weights": some(40, 1, 2, 3, 7),
	} {
		t.Run(name, func(t *testing.T) {
			tries := min(len(backends), 20)
			sum, worst := 0.0, 0.0
			for i := range tries {
				all, own := changed(backends, i*len(backends)/tries)
				sum, worst = sum+all/own, max(worst, all/own)
			}
			t.Logf("%.3f of the ideal on average, at most %.3f", sum/float64(tries), worst)
			testkit.Check(t, !(worst > 1.1), "%.3f of the ideal changes, at most 1.1 should", worst)
		})
	}
}

// TestLoad compares the number of each backend's entries with its share.
func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		backends []service.Backend
		off      float64 // from the share
	}{
		"2": {some(2), 0.1}, "3": {some(3), 0.1}, "10": {some(10), 0.1}, "100": {some(100), 0.2}, "500": {some(500), 0.2},
		"weights": {some(30, 10, 20, 30), 0.2}, "one heavy": {some(2, 9, 1), 0.2}, "large weights": {some(3, 65535, 30000),
			0.1},
	} {
		t.Run(name, func(t *testing.T) {
			table := maglevTable(c.backends)
			counts, total := make([]float64, len(c.backends)), 0.0
			for _, i := range table {
				counts[i]++
			}
			for _, b := range c.backends {
				total += float64(max(b.Weight, 1))
			}
			lowest, highest := math.Inf(1), 0.0
			for i, b := range c.backends {
				load := counts[i] / float64(len(table)) / (float64(max(b.Weight, 1)) / total)
				lowest, highest = min(lowest, load), max(highest, load)
			}
			t.Logf("%d entries, loads of %.3f to %.3f", len(table), lowest, highest)
			testkit.Check(t, !(lowest < 1-c.off) && !(highest > 1+c.off),
				"loads of %.3f to %.3f of the share, want 1 ± %.2f", lowest, highest, c.off)
		})
	}
}

// TestTableIsAlwaysTheSame checks that the order of the backends does not matter, so that nodes of different versions
// agree. A change of the digest breaks connections that change nodes while some nodes have the new version.
func TestTableIsAlwaysTheSame(t *testing.T) {
	backends := some(50, 1, 2, 3)
	backends[7].Addr = netip.MustParseAddrPort("[fd00::7]:80")
	table := maglevTable(backends)
	digest := fnv.New64a()
	for _, i := range table {
		digest.Write([]byte{byte(i), byte(i >> 8)})
	}
	got := digest.Sum64()
	testkit.Check(t, got == 0xaa99208d4cc80dba, "digest %#x", got)
	turned := slices.Clone(backends)
	slices.Reverse(turned)
	for i, entry := range maglevTable(turned) {
		testkit.Require(t, turned[entry].Addr == backends[table[i]].Addr,
			"entry %d is of %s, and of %s if the order is another", i, backends[table[i]].Addr, turned[entry].Addr)
	}
}

// TestLength fits rows of the datapath, and a program that masks a hash.
func TestLength(t *testing.T) {
	got := maglevTable(nil)
	testkit.Check(t, got == nil, "%d entries without a backend", len(got))
	for n, want := range map[int]int{1: 64, 2: 1024, 6: 1024, 7: 4096, 100: 16384, 409: 65536, 410: 262144,
		service.MaxBackends: 262144} {
		backends := some(n)
		backends[0].Weight = math.MaxUint16 // one that takes nearly all must not keep the others from an end
		table := maglevTable(backends)
		testkit.Check(t, len(table) == want && len(table)%MaglevBlock == 0 && len(table)&(len(table)-1) == 0,
			"%d backends: %d entries, want %d", n, len(table), want)
		for _, i := range table {
			testkit.Require(t, int(i) < n, "%d backends: an entry of backend %d", n, i)
		}
	}
}

// TestPermutation reverses orders; each contains all entries.
func TestPermutation(t *testing.T) {
	for _, entries := range []int{1 << 10, 1 << 12, 1 << 18} {
		p := newPermutation(mix(uint64(entries)), entries)
		seen := make([]bool, entries)
		for turn := range uint64(entries) {
			at := p.at(turn)
			if p.turnOf(at) != turn || seen[at] {
				t.Fatalf("turn %d of %d is at entry %d, whose turn is %d", turn, entries, at, p.turnOf(at))
			}
			seen[at] = true
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{3, 10, 100, 500, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			backends := some(n)
			for b.Loop() {
				maglevTable(backends)
			}
		})
	}
}
