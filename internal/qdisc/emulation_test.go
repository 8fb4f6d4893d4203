// SPDX-License-Identifier: Apache-2.0

package qdisc

import (
	"strings"
	"testing"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]uint64{"10gbit": 10e9, "1.5mbit": 15e5, "1000kbit": 1e6, "2000000bit": 2e6, "1Gbit": 1e9, "100gbit": 1e11} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "gbit", "-1gbit", "0bit", "1e99gbit", "nangbit", "10gbyte", "8kbit", "401gbit"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q is parsed as %d", text, got)
		}
	}
}

// TestRateLimits takes the limits from both messages: the rates there are accepted, those beyond are refused with the same words.
func TestRateLimits(t *testing.T) {
	_, parsed := ParseRate("fast")
	checked := CheckEmulation(1, 0)
	for _, err := range []error{parsed, checked} {
		words := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == ' ' || r == ',' })
		var ends []uint64
		for _, word := range words {
			if rate, err := ParseRate(word); err == nil {
				ends = append(ends, rate)
			}
		}
		if len(ends) != 2 || CheckEmulation(ends[0], 0) != nil || CheckEmulation(ends[1], 0) != nil ||
			CheckEmulation(ends[0]-1, 0) == nil || CheckEmulation(ends[1]+1, 0) == nil {
			t.Errorf("%q names the limits %v, which are not those that are held to", err, ends)
		}
	}
}

// FuzzParseRate parses any text to a rate that a wire can have, or to an error.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"10gbit", "1.5mbit", "0x1p4bit", "infgbit", "1_0kbit", " 1bit", "-0bit", "34.3gbit"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if rate, err := ParseRate(text); err == nil && CheckEmulation(rate, 0) != nil {
			t.Errorf("%q is parsed as %d bit/s", text, rate)
		}
	})
}
