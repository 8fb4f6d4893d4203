// SPDX-License-Identifier: Apache-2.0

package probe

import "testing"

// TestParseMeminfo adds up the areas of rules and maps, and refuses a text without one.
func TestParseMeminfo(t *testing.T) {
	const text = "MemFree: 5 kB\nSUnreclaim:         10 kB\nVmallocUsed:       20 kB\nPercpu:             1 kB\n"
	if got, err := parseMeminfo(text); err != nil || got != 31<<10 {
		t.Errorf("%d, %v, want %d", got, err, 31<<10)
	}
	for _, bad := range []string{"", "SUnreclaim: x kB\nVmallocUsed: 1 kB\nPercpu: 1 kB\n"} {
		if _, err := parseMeminfo(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
