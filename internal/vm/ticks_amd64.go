// SPDX-License-Identifier: Apache-2.0

package vm

import "time"

// ticks returns the processor's time-stamp counter.
func ticks() uint64

// tickRate returns the rate in kHz of the guest's time-stamp counter, which equals this machine's.
func tickRate() uint64 {
	from, atFrom := readTicks()
	time.Sleep(20 * time.Millisecond)
	to, atTo := readTicks()
	return uint64(float64(to-from) / atTo.Sub(atFrom).Seconds() / 1e3)
}

// readTicks reads the counter and the clock at the same moment: the fastest of several tries.
func readTicks() (counter uint64, at time.Time) {
	best := time.Hour
	for range 50 {
		before := time.Now()
		now := ticks()
		if took := time.Since(before); took < best {
			best, counter, at = took, now, before.Add(took/2)
		}
	}
	return counter, at
}
