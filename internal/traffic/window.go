// SPDX-License-Identifier: Apache-2.0

package traffic

import "time"

// window takes the clocks at the two ends of what a client measures: the busy
// clock, where the spec asks for it, last at the beginning and first at the end,
// so that the work of reading the others is not in its time.
type window struct {
	clock   *machineClock
	exact   *busyClock // nil where it is not asked for
	machine MachineTime
	cpu     time.Duration // this process's
	busy    uint64        // nanoseconds
}

// openWindow opens the clocks that the spec asks for.
func openWindow(spec Spec) (*window, error) {
	clock, err := openMachineClock()
	if err != nil {
		return nil, err
	}
	w := &window{clock: clock}
	if spec.Exact {
		if w.exact, err = openBusyClock(); err != nil {
			clock.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *window) begin() error {
	if err := w.clock.begin(); err != nil || w.exact == nil {
		return err
	}
	return w.exact.begin()
}

func (w *window) end() (err error) {
	if w.exact != nil {
		if w.busy, err = w.exact.end(); err != nil {
			return err
		}
	}
	w.machine, err = w.clock.end()
	w.cpu = w.clock.cpuElapsed
	return err
}

// close closes the clocks.
func (w *window) close() {
	w.clock.close()
	if w.exact != nil {
		w.exact.close()
	}
}
