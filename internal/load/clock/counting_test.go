// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"errors"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestLoopCheck gives the check a clock that counts instructions, and others.
func TestLoopCheck(t *testing.T) {
	// ticking simulates a machine on which each instruction takes so many nanoseconds.
	ticking := func(each float64) error {
		now := time.Unix(0, 0)
		l := loop{"playing", 4, func(turns uint64) { now = now.Add(time.Duration(float64(turns*4) * each)) }}
		return l.check(func() time.Time { return now })
	}
	err := ticking(1)
	testkit.Check(t, err == nil, "a clock that counts: %v", err)
	for _, each := range []float64{0.25, 0.9, 1.1, 5} {
		err := ticking(each)
		testkit.Check(t, errors.Is(err, ErrNotCounting), "%g ns per instruction: %v", each, err)
	}
}
