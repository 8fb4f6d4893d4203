// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"mustang/internal/testkit"
)

// TestColored prints without colors if the terminal lacks colors, or NO_COLOR is set.
func TestColored(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"TERM": "xterm"}, true}, {map[string]string{"TERM": "dumb"}, false},
		{map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
	} {
		got := colored(func(key string) string { return c.env[key] })
		testkit.Check(t, got == c.want, "%v: %t", c.env, got)
	}
}
