// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"runtime"
	"runtime/metrics"
)

// begin notes the beginning of a connection. While one is open, no garbage is collected.
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

// raiseThreads raises GOMAXPROCS so that one connection of n flows can carry load; others
// are idle then, outside the Go scheduler. It is called before a flow moves data: the
// runtime has to stop all threads for it, which takes a while for those in a system call.
func (w *worker) raiseThreads(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n += spareThreads; n > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// collect collects garbage if there is much. No load is carried.
func (w *worker) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heap.collect()
}

// maxGarbage is the number of bytes that the heap may grow by before garbage is collected.
const maxGarbage = 64 << 20

// heapMeter notices that garbage has grown.
type heapMeter struct {
	sample []metrics.Sample
	live   uint64 // bytes after the last collection
}

// collect collects garbage if the heap has grown by 64 MiB since the last collection.
func (m *heapMeter) collect() {
	if m.read() < m.live+maxGarbage {
		return
	}
	runtime.GC()
	m.live = m.read()
}

func (m *heapMeter) read() uint64 {
	if m.sample == nil {
		m.sample = []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	}
	metrics.Read(m.sample)
	return m.sample[0].Value.Uint64()
}
