// SPDX-License-Identifier: Apache-2.0

package clock

// Window takes the clocks at both ends of a measured window. It is for one
// goroutine at a time.
type Window struct {
	// Machine is the machine's time in the window. Set by End.
	Machine MachineTime
	// BusyNanos is the time in nanoseconds that the machine's CPUs were not idle, 0 if
	// the window is not an exact one. On an emulated machine with one CPU, whose clock
	// advances by one nanosecond with each instruction, it is the number of
	// instructions. Set by End.
	BusyNanos uint64

	machine *Machine
	busy    *busyClock // nil if not exact
}

// OpenWindow opens the clocks. An exact window also measures BusyNanos, which takes
// root.
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

// Begin opens the window. The exact clock is read last, so that reading the others
// is not part of the window.
func (w *Window) Begin() error {
	if err := w.machine.Begin(); err != nil {
		return err
	}
	if w.busy == nil {
		return nil
	}
	return w.busy.begin()
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
