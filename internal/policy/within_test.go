// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math/rand/v2"
	"testing"

	"mustang/internal/testkit"
)

// TestWithinTheQuota follows random changes: where all rows together are within the quota of one namespace, no namespace is above it.
func TestWithinTheQuota(t *testing.T) {
	within, over := 0, 0
	for seed := range uint64(testkit.Repeats(200, 5000)) {
		g := generator{rand.New(rand.NewPCG(seed, 11))}
		s, c := g.snapshot(), NewCompiler(Rows{})
		for step := range 5 {
			if _, err := c.Change(s); err != nil {
				t.Fatal(err)
			}
			c.Settle()
			q := Quota{1 + g.IntN(100), 1 + g.IntN(200), 1 + g.IntN(20), 1 + g.IntN(100), 1 + g.IntN(200), 1 + g.IntN(5000)}
			err := s.CheckQuota(q)
			switch is := c.Within(q); {
			case is && err != nil:
				t.Errorf("seed %d, step %d: %+v: %v", seed, step, q, err)
			case is:
				within++
			case err != nil:
				over++
			}
			g.change(&s, step)
		}
	}
	if within < 50 || over < 50 {
		t.Errorf("%d snapshots were within their quota, %d above", within, over)
	}
}
