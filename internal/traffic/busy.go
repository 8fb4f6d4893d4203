// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// timerListBuffer is room for /proc/timer_list of a small machine at first.
const timerListBuffer = 1 << 18

// idleLine is the line of /proc/timer_list that says how long a CPU has been
// idle, in nanoseconds. (/proc/stat and /proc/uptime round to 10 ms.) A CPU that
// idles just now is not up to date in it, so the time is exact where the reader's
// own CPU is the only one.
var idleLine = []byte("  .idle_sleeptime : ")

// busyClock measures how long the machine's CPUs are not idle.
type busyClock struct {
	fd    int
	buf   []byte
	cpus  int
	idle  uint64
	began time.Time
}

// openBusyClock opens the kernel's list of timers, which takes root.
func openBusyClock() (*busyClock, error) {
	fd, err := unix.Open("/proc/timer_list", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc/timer_list: %w", err)
	}
	return &busyClock{fd: fd, buf: make([]byte, timerListBuffer)}, nil
}

// begin opens the window; the last that it does is to read the clock.
func (c *busyClock) begin() (err error) {
	c.idle, c.cpus, err = c.read()
	c.began = time.Now()
	return err
}

// end closes the window, before it does anything else, and returns the busy time
// in nanoseconds.
func (c *busyClock) end() (uint64, error) {
	elapsed := uint64(time.Since(c.began))
	idle, cpus, err := c.read()
	if err != nil {
		return 0, err
	}
	if cpus != c.cpus {
		return 0, fmt.Errorf("there are %d CPUs now, and were %d", cpus, c.cpus)
	}
	spent := increase(c.idle, idle)
	if spent > elapsed*uint64(cpus) {
		return 0, fmt.Errorf("CPUs idle for %d ns of %d: the clocks differ", spent, elapsed*uint64(cpus))
	}
	return elapsed*uint64(cpus) - spent, nil
}

// close closes the list.
func (c *busyClock) close() { _ = unix.Close(c.fd) }

// read returns how long all CPUs together have been idle, in nanoseconds, and how
// many there are.
func (c *busyClock) read() (idle uint64, cpus int, err error) {
	n := 0
	for {
		if n == len(c.buf) {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		}
		m, err := unix.Pread(c.fd, c.buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/timer_list: %w", err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	if idle, cpus = parseTimerList(c.buf[:n]); cpus == 0 {
		return 0, 0, fmt.Errorf("read /proc/timer_list: no idle time in %d bytes (it takes CONFIG_NO_HZ_COMMON)", n)
	}
	return idle, cpus, nil
}

// parseTimerList sums up the idle times of all CPUs.
func parseTimerList(b []byte) (idle uint64, cpus int) {
	for line := range bytes.Lines(b) {
		if value, ok := bytes.CutPrefix(line, idleLine); ok {
			idle += column(value, 0)
			cpus++
		}
	}
	return idle, cpus
}
