// SPDX-License-Identifier: Apache-2.0

package worker

import "runtime"

// begin notes the beginning of a connection. While one is open, garbage is collected between slices alone.
func (w *worker) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
}

// end notes its end, and collects garbage after the last one.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active--; w.active > 0 {
		return
	}
	if runtime.GOMAXPROCS(0) > w.slots {
		runtime.GOMAXPROCS(w.slots)
	}
	runtime.GC()
}

// raiseThreads raises GOMAXPROCS so that one connection of n flows can carry load; other connections are idle then,
// outside the Go scheduler. It must precede the first transfer of a flow: the runtime stops all threads for it,
// which takes long for threads in a system call.
func (w *worker) raiseThreads(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n += spareThreads; n > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}
