// SPDX-License-Identifier: Apache-2.0

package qdisc

import "testing"

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"10gbit": 10e9, "1.5mbit": 15e5, "8kbit": 8000, "5bit": 5, "1Gbit": 1e9} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "gbit", "-1gbit", "0bit", "1e99gbit", "nangbit", "10gbyte", "100gbit"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is parsed as %d", text, got)
		}
	}
}

// FuzzParseRate parses any text to a rate that a wire can count, or to an error.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"10gbit", "1.5mbit", "0x1p4bit", "infgbit", "1_0kbit", " 1bit", "-0bit", "34.3gbit"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if rate, err := ParseRate(text); err == nil && (rate < 1 || rate > 8<<32) {
			t.Errorf("%q is parsed as %d bit/s", text, rate)
		}
	})
}
