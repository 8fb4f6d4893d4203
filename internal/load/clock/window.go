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
	"time"
)

// Window takes the clocks at both ends of a measured window. It is for one goroutine at a time.
type Window struct {
	// Machine is the machine's time in the window. Set by End.
	Machine MachineTime
	// BusyNanos is the time in nanoseconds that the machine's CPUs were not idle, 0 if the window is not an exact one. On
	// an emulated machine with one CPU, whose clock advances by one nanosecond with each instruction, it is the number of
	// instructions. Set by End.
	BusyNanos uint64

	machine *Machine
	busy    *busyClock // nil if not exact
}

// OpenWindow opens the clocks. An exact window also measures BusyNanos, which takes root.
func OpenWindow(exact bool) (*Window, error) {
	machine, err := OpenMachine()
	if err != nil {
		return nil, err
	}
	w := &Window{machine: machine}
	if exact {
		file, err := openProc("/proc/timer_list")
		if err != nil {
			machine.Close()
			return nil, err
		}
		w.busy = &busyClock{procFile: file}
	}
	return w, nil
}

// Begin opens the window. The exact clock is read last, so that reading the others is not part of the window.
func (w *Window) Begin() error {
	err := w.machine.Begin()
	if err == nil && w.busy != nil {
		err = w.busy.begin()
	}
	return err
}

// End closes the window. The exact clock is read first.
func (w *Window) End() (err error) {
	if w.busy != nil {
		if w.BusyNanos, err = w.busy.end(); err != nil {
			return err
		}
	}
	w.Machine, err = w.machine.End()
	return err
}

// Close closes the clocks.
func (w *Window) Close() {
	w.machine.Close()
	if w.busy != nil {
		w.busy.Close()
	}
}

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

func parseTimerList(b []byte) (idle uint64, cpus int) {
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(line, idleLine) {
			idle += numbers(line)[1] // after the colon
			cpus++
		}
	}
	return idle, cpus
}
