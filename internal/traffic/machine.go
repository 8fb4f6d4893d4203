// SPDX-License-Identifier: Apache-2.0

package traffic

// MachineWatch measures what the whole machine spends, for loads that are not made
// by agents. It is for one goroutine.
type MachineWatch struct{ clock *machineClock }

// WatchMachine opens /proc/stat.
func WatchMachine() (*MachineWatch, error) {
	clock, err := openMachineClock()
	if err != nil {
		return nil, err
	}
	return &MachineWatch{clock}, nil
}

// Begin opens the window.
func (w *MachineWatch) Begin() error { return w.clock.begin() }

// End returns what was spent since Begin.
func (w *MachineWatch) End() (MachineTime, error) { return w.clock.end() }

// Close closes /proc/stat.
func (w *MachineWatch) Close() { w.clock.close() }
