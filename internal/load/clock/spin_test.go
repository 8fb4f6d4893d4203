// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"testing"
	"time"
)

// TestSpin checks the time of many turns, of which the shortest run was not interrupted.
func TestSpin(t *testing.T) {
	const times = 1000
	for _, want := range []time.Duration{200 * time.Nanosecond, 5 * time.Microsecond} {
		s := NewSpinner(want)
		least := time.Hour
		for range 50 {
			start := time.Now()
			for range times {
				s.Spin()
			}
			least = min(least, time.Since(start)/times)
		}
		if least < want*7/10 || least > want*15/10 {
			t.Errorf("%v instead of %v", least, want)
		}
	}
	if s := NewSpinner(0); s.turns != 0 {
		t.Errorf("%d turns for no time", s.turns)
	}
}
