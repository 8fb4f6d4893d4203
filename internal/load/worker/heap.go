// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"runtime"
	"runtime/metrics"
)

// maxGarbage is the number of bytes that the heap may grow by before garbage is collected.
const maxGarbage = 64 << 20

// heapMeter notices that garbage has grown. It is for one goroutine.
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

// read returns the size of the heap in bytes, garbage included.
func (m *heapMeter) read() uint64 {
	if m.sample == nil {
		m.sample = []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	}
	metrics.Read(m.sample)
	return m.sample[0].Value.Uint64()
}
