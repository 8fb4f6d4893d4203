// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestColored prints without colors if the terminal lacks colors, or NO_COLOR is set.
func TestColored(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm"}, true}, {map[string]string{"TERM": "dumb"}, false},
		{map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
	} {
		if got := colored(func(key string) string { return c.env[key] }); got != c.want {
			t.Errorf("%v: %t", c.env, got)
		}
	}
}
