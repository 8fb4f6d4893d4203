// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"bytes"
	"fmt"
	"time"
)

// idleLine is the line of /proc/timer_list with the idle time of a CPU in
// nanoseconds. (/proc/stat and /proc/uptime round to 10 ms.) The kernel updates it
// when a CPU stops idling, so the sum is exact if the reader's CPU is the only one.
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

// end closes the window and returns the busy time in nanoseconds. Reading the time
// is its first action.
func (c *busyClock) end() (uint64, error) {
	elapsed := uint64(time.Since(c.began))
	idle, cpus, err := c.read()
	if err != nil {
		return 0, err
	}
	if cpus != c.cpus {
		return 0, fmt.Errorf("number of CPUs changed from %d to %d", c.cpus, cpus)
	}
	spent := increase(c.idle, idle)
	if spent > elapsed*uint64(cpus) {
		return 0, fmt.Errorf("CPUs idle for %d ns of %d: the clocks differ", spent, elapsed*uint64(cpus))
	}
	return elapsed*uint64(cpus) - spent, nil
}

// read returns the idle time of all CPUs in nanoseconds, and their number.
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

// parseTimerList sums up the idle times of all CPUs.
func parseTimerList(b []byte) (idle uint64, cpus int) {
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(line, idleLine) {
			idle += numbers(line)[1] // after the colon
			cpus++
		}
	}
	return idle, cpus
}
