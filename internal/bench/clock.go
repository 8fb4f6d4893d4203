// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"
)

// ErrNotCounting says that the clock of this machine does not count
// instructions.
var ErrNotCounting = errors.New("the clock of this machine does not count instructions")

// loop is a stretch of a known number of instructions.
type loop struct {
	name string
	each uint64 // instructions per turn
	run  func(turns uint64)
}

// Bounds of the check of the clock.
const (
	checkInstructions = 500_000 // of one stretch; a timer's interrupt takes some thousands
	checkTimes        = 7       // how often it is run; the least counts
	checkTolerance    = 0.01
)

// checkCounting returns an error unless this is a machine with one processor
// whose clock advances by one nanosecond with each instruction, of whatever kind:
// figures must never be called instructions when they are time.
func checkCounting() error {
	f := facts{root: os.DirFS("/")}
	if cpus := f.machine().CPUs; cpus != 1 {
		return fmt.Errorf("%w: it has %d CPUs, want 1", ErrNotCounting, cpus)
	}
	stretches := loops()
	if len(stretches) == 0 {
		return fmt.Errorf("%w: on %s it cannot be told", ErrNotCounting, runtime.GOARCH)
	}
	for _, stretch := range stretches {
		if err := stretch.check(time.Now); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error unless the stretch takes a nanosecond per instruction.
func (l loop) check(now func() time.Time) error {
	least := time.Duration(math.MaxInt64)
	for range checkTimes {
		start := now()
		l.run(checkInstructions / l.each)
		least = min(least, now().Sub(start))
	}
	if off := float64(least)/checkInstructions - 1; math.Abs(off) > checkTolerance {
		return fmt.Errorf("%w: %d instructions (%s) took %v, want %v", ErrNotCounting,
			checkInstructions, l.name, least, time.Duration(checkInstructions))
	}
	return nil
}
