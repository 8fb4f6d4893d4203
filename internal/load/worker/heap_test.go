// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestGarbageIsCollected lets garbage grow while the collector is off.
func TestGarbageIsCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var m heapMeter
	runtime.GC()
	m.live = m.read()
	for range 2 * maxGarbage >> 20 {
		garbage = make([]byte, 1<<20)
	}
	grown := m.read()
	m.collect()
	if now := m.read(); grown < m.live+maxGarbage || now > grown-maxGarbage {
		t.Errorf("the heap has %d bytes after a collection, before %d", now, grown)
	}
}

// garbage escapes to the heap.
var garbage []byte
