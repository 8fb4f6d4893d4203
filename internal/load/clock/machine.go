// SPDX-License-Identifier: Apache-2.0

// Package clock reads the clocks at both ends of a measured window: the busy time of the machine's CPUs and, on an
// emulated machine, the number of executed instructions.
//
// CPU time is the whole machine's busy time ([MachineTime]): softirqs, which spend most of a packet's cost, are
// charged to no process or to any. It is meaningful only if the machine is otherwise idle.
package clock

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const userHZ = 100 // the unit of /proc/stat, fixed in the kernel's interface

// procFile is a file of /proc that is read again and again.
type procFile struct {
	path string
	fd   int
	buf  []byte
}

func openProc(path string) (procFile, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procFile{}, fmt.Errorf("open %s: %w", path, err)
	}
	return procFile{path, fd, make([]byte, 1<<14)}, nil
}

func (f *procFile) read() ([]byte, error) {
	for n := 0; ; {
		if n == len(f.buf) {
			f.buf = append(f.buf, make([]byte, n)...)
		}
		read, err := unix.Pread(f.fd, f.buf[n:], int64(n))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", f.path, err)
		case read == 0:
			return f.buf[:n], nil
		}
		n += max(read, 0)
	}
}

// Close closes the file.
func (f *procFile) Close() { _ = unix.Close(f.fd) }

// MachineTime is the difference of two readings of /proc/stat, summed over all CPUs. The kernel accounts in ticks of
// 10 ms, so a second on two CPUs resolves to 0.5 %.
type MachineTime struct {
	Seconds float64 `json:"seconds"` // the time between the two readings
	// BusySeconds is Seconds times the CPUs, less idle, iowait and steal. It contains whatever else ran on the machine.
	// Of a few ticks it may be negative: a sum over many short windows is true, one of them is not.
	BusySeconds    float64 `json:"busy_seconds"`
	UserSeconds    float64 `json:"user_seconds,omitempty"` // in processes, with nice ones
	SystemSeconds  float64 `json:"system_seconds,omitempty"`
	SoftirqSeconds float64 `json:"softirq_seconds,omitempty"`
	IdleSeconds    float64 `json:"idle_seconds,omitempty"`
	StealSeconds   float64 `json:"steal_seconds"` // time that the hypervisor gave to other guests
	NetRX          uint64  `json:"net_rx"`        // NET_RX softirqs of all namespaces; NetTX: NET_TX
	NetTX          uint64  `json:"net_tx"`
}

// Machine measures how busy the whole machine is in a window. It is for one goroutine at a time.
type Machine struct {
	// BusyNanos is the time in nanoseconds that the machine's CPUs were not idle, 0 if the window is not an exact one. On
	// an emulated machine with one CPU, whose clock advances by one nanosecond with each instruction, it is the number of
	// instructions. Set by End.
	BusyNanos uint64

	procFile
	began sample
	busy  *busyClock // nil if not exact
}

type sample struct {
	at                                         time.Time
	cpus                                       int
	user, system, idle, iowait, softirq, steal uint64 // ticks
	netRX, netTX                               uint64
}

// OpenMachine opens the file that a machine is measured by.
func OpenMachine() (*Machine, error) {
	file, err := openProc("/proc/stat")
	if err != nil {
		return nil, err
	}
	return &Machine{procFile: file}, nil
}

// OpenExact returns a machine that also measures BusyNanos, which takes root.
func OpenExact() (*Machine, error) {
	m, err := OpenMachine()
	if err != nil {
		return nil, err
	}
	file, err := openProc("/proc/timer_list")
	if err != nil {
		m.Close()
		return nil, err
	}
	m.busy = &busyClock{procFile: file}
	return m, nil
}

// Begin opens the window. The exact clock is read last, so that reading the other is not part of the window.
func (m *Machine) Begin() (err error) {
	if m.began, err = m.read(); err == nil && m.busy != nil {
		err = m.busy.begin()
	}
	return err
}

// End closes the window and returns the machine's time in it. The exact clock is read first.
func (m *Machine) End() (t MachineTime, err error) {
	if m.busy != nil {
		if m.BusyNanos, err = m.busy.end(); err != nil {
			return t, err
		}
	}
	now, err := m.read()
	return now.since(m.began), err
}

// Close closes the clocks.
func (m *Machine) Close() {
	m.procFile.Close()
	if m.busy != nil {
		m.busy.Close()
	}
}

func (m *Machine) read() (sample, error) {
	at := time.Now()
	text, err := m.procFile.read()
	s := parseStat(text)
	if s.at = at; err == nil && s.cpus == 0 {
		err = fmt.Errorf("read /proc/stat: no CPU in %d bytes", len(text))
	}
	return s, err
}

// parseStat reads /proc/stat as proc_stat(5) describes it. The "cpu" line is user nice system idle iowait irq
// softirq steal. The "softirq" line is the total, then HI TIMER NET_TX NET_RX (the order of the kernel's enum).
func parseStat(b []byte) (s sample) {
	for line := range bytes.Lines(b) {
		switch {
		case bytes.HasPrefix(line, []byte("cpu ")):
			n := numbers(line)
			s.user, s.system, s.idle, s.iowait, s.softirq, s.steal = n[0]+n[1], n[2], n[3], n[4], n[6], n[7]
		case bytes.HasPrefix(line, []byte("cpu")):
			s.cpus++
		case bytes.HasPrefix(line, []byte("softirq ")):
			n := numbers(line)
			s.netTX, s.netRX = n[3], n[4]
		}
	}
	return s
}

// numbers returns the numbers after the first word of a line; 0 for missing ones.
func numbers(line []byte) (out [8]uint64) {
	for i, field := range bytes.Fields(line) {
		if i > 0 && i <= len(out) {
			out[i-1], _ = strconv.ParseUint(string(field), 10, 64)
		}
	}
	return out
}

func (s sample) since(earlier sample) MachineTime {
	seconds := s.at.Sub(earlier.at).Seconds()
	steal := ticks(earlier.steal, s.steal)
	busy := seconds*float64(s.cpus) - ticks(earlier.idle, s.idle) - ticks(earlier.iowait, s.iowait) - steal
	return MachineTime{
		Seconds:        seconds,
		BusySeconds:    busy,
		UserSeconds:    ticks(earlier.user, s.user),
		SystemSeconds:  ticks(earlier.system, s.system),
		SoftirqSeconds: ticks(earlier.softirq, s.softirq),
		IdleSeconds:    ticks(earlier.idle, s.idle),
		StealSeconds:   steal,
		NetRX:          increase(earlier.netRX, s.netRX),
		NetTX:          increase(earlier.netTX, s.netTX),
	}
}

// Add adds the time of another window.
func (t *MachineTime) Add(o MachineTime) {
	t.Seconds += o.Seconds
	t.BusySeconds += o.BusySeconds
	t.UserSeconds += o.UserSeconds
	t.SystemSeconds += o.SystemSeconds
	t.SoftirqSeconds += o.SoftirqSeconds
	t.IdleSeconds += o.IdleSeconds
	t.StealSeconds += o.StealSeconds
	t.NetRX += o.NetRX
	t.NetTX += o.NetTX
}

// CheckCounting returns [ErrNotCounting] unless this machine has one CPU and a clock that advances by one nanosecond
// with each instruction of any kind. Times of other machines must not be reported as instructions.
func CheckCounting() error {
	machine, err := OpenMachine()
	if err != nil {
		return err
	}
	defer machine.Close()
	now, err := machine.read()
	known := loops()
	switch {
	case err != nil:
		return err
	case now.cpus != 1:
		return fmt.Errorf("%w: %d CPUs, want 1", ErrNotCounting, now.cpus)
	case len(known) == 0:
		return fmt.Errorf("%w: no check for %s", ErrNotCounting, runtime.GOARCH)
	}
	for _, l := range known {
		if err := l.check(time.Now); err != nil {
			return err
		}
	}
	return nil
}

// increase is the growth of a counter. The kernel's iowait and idle can step back by a tick, which counts as no growth.
func increase(from, to uint64) uint64 { return max(from, to) - from }
func ticks(from, to uint64) float64   { return float64(increase(from, to)) / userHZ }

// idleLine is the line of /proc/timer_list with the idle time of a CPU in nanoseconds. (/proc/stat rounds to 10 ms.)
// The kernel updates it when a CPU stops idling, so the sum is exact if there is only the reader's CPU.
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
