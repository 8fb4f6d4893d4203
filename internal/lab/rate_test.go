// SPDX-License-Identifier: Apache-2.0

package lab

import "testing"

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"10gbit": 10e9, "1.5mbit": 15e5, "8kbit": 8000, "5bit": 5, "1Gbit": 1e9} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "gbit", "-1gbit", "0bit", "1e99gbit", "nangbit", "10gbyte", "100gbit"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}
