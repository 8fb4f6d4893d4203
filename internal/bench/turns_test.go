// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"
)

// TestTurns checks that in each round every row has two turns, that a block's turns follow
// each other and read the same from both ends, and that orders vary.
func TestTurns(t *testing.T) {
	blocks := [][]int{{0, 1, 4}, {2, 3}, {5}}
	seen := map[int]bool{}
	for round := range 50 {
		got := turns(7, round, blocks)
		if again := turns(7, round, blocks); !slices.Equal(got, again) {
			t.Fatalf("round %d: %v, and %v the second time", round, got, again)
		}
		seen[got[0]] = true
		for len(got) > 0 {
			i := slices.IndexFunc(blocks, func(b []int) bool { return slices.Contains(b, got[0]) })
			n := 2 * len(blocks[i])
			there, back := got[:n/2], slices.Clone(got[n/2:n])
			slices.Reverse(back)
			if !slices.Equal(there, back) || !slices.Equal(slices.Sorted(slices.Values(there)), blocks[i]) {
				t.Fatalf("round %d: block %v takes turns %v", round, blocks[i], got[:n])
			}
			got = got[n:]
		}
	}
	if len(seen) != 6 {
		t.Errorf("rows %v begin a round, want each of 6 in turn", seen)
	}
}
