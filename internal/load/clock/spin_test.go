// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"fmt"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestSpin checks the time of many turns, of which the shortest run was not interrupted. On a busy machine a spinner
// that was made while others ran is too slow or too fast, and another one is made.
func TestSpin(t *testing.T) {
	for _, want := range []time.Duration{200 * time.Nanosecond, 5 * time.Microsecond} {
		testkit.Eventually(t, 20*time.Second, func() error {
			if took := shortestTurn(NewSpinner(want)); took < want*7/10 || took > want*15/10 {
				return fmt.Errorf("%v instead of %v", took, want)
			}
			return nil
		})
	}
	s := NewSpinner(0)
	testkit.Check(t, s.turns == 0, "%d turns for no time", s.turns)
}

// shortestTurn returns how long a turn of the spinner takes, of the shortest of many runs.
func shortestTurn(s *Spinner) time.Duration {
	const times = 1000
	least := time.Hour
	for range 50 {
		start := time.Now()
		for range times {
			s.Spin()
		}
		least = min(least, time.Since(start)/times)
	}
	return least
}
