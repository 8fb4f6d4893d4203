// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestGarbageIsCollected lets garbage grow while the collector is off.
func TestGarbageIsCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var m Meter
	runtime.GC()
	m.live = m.Read()
	for range 2 * maxGarbage >> 20 {
		garbage = make([]byte, 1<<20)
	}
	grown := m.Read()
	m.Collect()
	if now := m.Read(); grown < m.live+maxGarbage || now > grown-maxGarbage {
		t.Errorf("the heap has %d bytes after a collection, before %d", now, grown)
	}
}

// garbage escapes to the heap.
var garbage []byte
