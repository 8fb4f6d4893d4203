// SPDX-License-Identifier: Apache-2.0

package worker

import "runtime"

// begin notes the beginning of a run or of a connection. While one is open, no garbage
// is collected.
func (w *worker) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
}

// end notes its end, and collects garbage after the last one, or when there is much.
func (w *worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active--
	if w.active > 0 {
		w.heap.collect()
		return
	}
	if runtime.GOMAXPROCS(0) > w.slots {
		runtime.GOMAXPROCS(w.slots)
	}
	runtime.GC()
}

// addThreads raises GOMAXPROCS for more threads that carry load; a negative number takes
// them back. The caller holds the lock. It is called for all flows of a run before the
// first one moves data: the runtime has to stop all threads for it, which takes a while
// for those in a system call.
func (w *worker) addThreads(n int) {
	w.loadThreads += n
	if need := min(w.loadThreads, maxLoadThreads) + spareThreads; need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

// raiseThreads raises GOMAXPROCS so that one standing connection of n flows can carry
// load beside the runs. Others rest then, outside the Go scheduler. The caller holds the
// lock.
func (w *worker) raiseThreads(n int) {
	w.addThreads(n)
	w.loadThreads -= n
}

// collect collects garbage if there is much. No load is carried.
func (w *worker) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heap.collect()
}
