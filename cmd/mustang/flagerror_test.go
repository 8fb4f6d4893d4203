// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestFlagError gives flags values that they do not take.
func TestFlagError(t *testing.T) {
	t.Parallel()
	for line, want := range map[[3]string]string{
		{"bench", "--rounds", "1x"}:        `--rounds "1x": want a whole number`,
		{"bench", "--slice", "1"}:          `--slice "1": want a duration such as 10ms or 2m`,
		{"bench", "--quick=maybe"}:         `--quick "maybe": want true or false`,
		{"agent", "--vxlan-port", "1e5"}:   `--vxlan-port "1e5": want a whole number from 0 to 65535`,
		{"agent", "--routing", "straight"}: `--routing: routing "straight": want auto, native, vxlan or off`,
	} {
		var args []string
		for _, a := range line {
			if a != "" {
				args = append(args, a)
			}
		}
		code, _, stderr := command(t, nil, args...)
		if code != exitMisuse || stderr != "mustang: "+want+"\n" {
			t.Errorf("%q: %d, %s", args, code, stderr)
		}
	}
}
