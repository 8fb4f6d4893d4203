// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrNotCounting is returned if the clock of this machine does not count instructions.
var ErrNotCounting = errors.New("the clock of this machine does not count instructions")

type loop struct {
	name         string
	instructions uint64 // per turn
	run          func(turns uint64)
}

// Bounds of the check of the clock.
const (
	// checkInstructions is the number of one run. An interrupt takes some thousands, and devices interrupt in the time
	// of the host: on a busy host, few long runs are without.
	checkInstructions = 100_000
	checkRuns         = 35 // the shortest counts
	checkTolerance    = 0.01
)

func (l loop) check(now func() time.Time) error {
	least := time.Duration(math.MaxInt64)
	for range checkRuns {
		start := now()
		l.run(checkInstructions / l.instructions)
		least = min(least, now().Sub(start))
	}
	if off := float64(least)/checkInstructions - 1; math.Abs(off) > checkTolerance {
		return fmt.Errorf("%w: %d instructions (%s) took %v, want %v", ErrNotCounting,
			checkInstructions, l.name, least, time.Duration(checkInstructions))
	}
	return nil
}
