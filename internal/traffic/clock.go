// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is the unit of /proc/stat, fixed in the kernel's interface.
const userHZ = 100

// statBuffer is room for /proc/stat; its line of interrupts grows with the
// machine.
const statBuffer = 1 << 18

// machineClock reads /proc/stat over and over without allocating.
type machineClock struct {
	fd         int
	buf        []byte
	began      machineSample
	cpuBegan   time.Duration
	cpuElapsed time.Duration
}

// machineSample is one reading.
type machineSample struct {
	at                  time.Time
	cpus                int
	idle, iowait, steal uint64 // ticks
	netRX, netTX        uint64
}

// openMachineClock opens /proc/stat.
func openMachineClock() (*machineClock, error) {
	fd, err := unix.Open("/proc/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc/stat: %w", err)
	}
	return &machineClock{fd: fd, buf: make([]byte, statBuffer)}, nil
}

// begin opens the window of the machine's and the process's CPU time.
func (c *machineClock) begin() (err error) {
	c.began, err = c.read()
	c.cpuBegan = processCPU()
	return err
}

// end closes it and returns the machine's share; the process's is in
// cpuElapsed.
func (c *machineClock) end() (MachineTime, error) {
	c.cpuElapsed = processCPU() - c.cpuBegan
	now, err := c.read()
	if err != nil {
		return MachineTime{}, err
	}
	return now.since(c.began), nil
}

// close closes /proc/stat.
func (c *machineClock) close() { _ = unix.Close(c.fd) }

// read takes a sample.
func (c *machineClock) read() (machineSample, error) {
	at := time.Now()
	n := 0
	for n < len(c.buf) {
		m, err := unix.Pread(c.fd, c.buf[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return machineSample{}, fmt.Errorf("read /proc/stat: %w", err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	s := parseStat(c.buf[:n])
	s.at = at
	if s.cpus == 0 {
		return machineSample{}, fmt.Errorf("read /proc/stat: no CPU in %d bytes", n)
	}
	return s, nil
}

// parseStat reads /proc/stat as proc_stat(5) describes it: the "cpu" line is
// user nice system idle iowait irq softirq steal, the "softirq" line is the
// total, then HI TIMER NET_TX NET_RX (the order of the kernel's enum).
func parseStat(b []byte) machineSample {
	var s machineSample
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		switch {
		case bytes.HasPrefix(line, []byte("cpu ")):
			s.idle, s.iowait, s.steal = column(line, 4), column(line, 5), column(line, 8)
		case bytes.HasPrefix(line, []byte("cpu")):
			s.cpus++
		case bytes.HasPrefix(line, []byte("softirq ")):
			s.netTX, s.netRX = column(line, 4), column(line, 5)
		}
	}
	return s
}

// column returns the number in a column of a line, counted from 0, or 0 where
// there is none.
func column(line []byte, index int) uint64 {
	var value uint64
	at, inside := -1, false
	for _, c := range line {
		if c == ' ' {
			inside = false
			continue
		}
		if !inside {
			inside = true
			at++
		}
		if at > index {
			break
		}
		if at == index {
			if c < '0' || c > '9' {
				return 0
			}
			value = value*10 + uint64(c-'0')
		}
	}
	return value
}

// since returns what the machine spent from an earlier sample to s.
func (s machineSample) since(earlier machineSample) MachineTime {
	seconds := s.at.Sub(earlier.at).Seconds()
	steal := ticks(earlier.steal, s.steal)
	busy := seconds*float64(s.cpus) - ticks(earlier.idle, s.idle) - ticks(earlier.iowait, s.iowait) - steal
	return MachineTime{
		Seconds:      seconds,
		BusySeconds:  max(busy, 0),
		StealSeconds: steal,
		NetRX:        increase(earlier.netRX, s.netRX),
		NetTX:        increase(earlier.netTX, s.netTX),
	}
}

// increase is the growth of a counter; the kernel's iowait and idle can step
// back by a tick, which counts as none.
func increase(from, to uint64) uint64 {
	if to < from {
		return 0
	}
	return to - from
}

// ticks is the growth of a counter of ticks in seconds.
func ticks(from, to uint64) float64 { return float64(increase(from, to)) / userHZ }

// processCPU returns the CPU time of this process so far, all threads, user
// and system.
func processCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
