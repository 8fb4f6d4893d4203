// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// idleLine is the line of /proc/timer_list with the idle time of a CPU in nanoseconds. (/proc/stat and /proc/uptime
// round to 10 ms.) The kernel updates it when a CPU stops idling, so the sum is exact if the reader's CPU is the only
// one.
var idleLine = []byte("  .idle_sleeptime : ")

// busyClock measures how long the machine's CPUs are not idle.
type busyClock struct {
	procFile
	cpus  int
	idle  uint64
	began time.Time
}

// begin opens the window. Reading the time is its last action.
func (c *busyClock) begin() (err error) {
	c.idle, c.cpus, err = c.read()
	c.began = time.Now()
	return err
}

// end closes the window and returns the busy time in nanoseconds. Reading the time is its first action.
func (c *busyClock) end() (uint64, error) {
	elapsed := uint64(time.Since(c.began))
	idle, cpus, err := c.read()
	if err != nil {
		return 0, err
	}
	idle, elapsed = increase(c.idle, idle), elapsed*uint64(cpus)
	if cpus != c.cpus || idle > elapsed {
		return 0, fmt.Errorf("%d CPUs, before %d, idle for %d ns of %d: the clocks differ", cpus, c.cpus, idle, elapsed)
	}
	return elapsed - idle, nil
}

func (c *busyClock) read() (idle uint64, cpus int, err error) {
	text, err := c.procFile.read()
	if err != nil {
		return 0, 0, err
	}
	if idle, cpus = parseTimerList(text); cpus == 0 {
		return 0, 0, fmt.Errorf("read /proc/timer_list: no idle time in %d bytes (needs CONFIG_NO_HZ_COMMON)", len(text))
	}
	return idle, cpus, nil
}

func parseTimerList(b []byte) (idle uint64, cpus int) {
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(line, idleLine) {
			idle += numbers(line)[1] // after the colon
			cpus++
		}
	}
	return idle, cpus
}

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
