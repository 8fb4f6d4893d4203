// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"math"
	"time"
)

// Spinner computes for a time that is shorter than a reading of the clock.
type Spinner struct {
	turns uint64
	state uint64
}

// Turns and runs of a calibration: 20 runs of about 20 µs. The shortest was not interrupted.
const (
	spinTurns = 20_000
	spinRuns  = 20
)

// NewSpinner returns a spinner for a time, by the present speed of the CPU.
func NewSpinner(d time.Duration) *Spinner {
	if d <= 0 {
		return &Spinner{}
	}
	s := &Spinner{turns: spinTurns}
	least := time.Duration(math.MaxInt64)
	for range spinRuns {
		start := time.Now()
		s.Spin()
		least = min(least, time.Since(start))
	}
	s.turns = uint64(math.Round(float64(d) * spinTurns / float64(max(least, 1))))
	return s
}

// Spin computes: each turn needs the result of the one before.
func (s *Spinner) Spin() {
	state := s.state
	for range s.turns {
		state = state*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
	}
	s.state = state
}
