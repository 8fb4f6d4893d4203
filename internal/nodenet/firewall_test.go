// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestIntervals has intervals of prefixes that hold, overlap and follow each other, and that reach to the last address.
func TestIntervals(t *testing.T) {
	for prefixes, want := range map[string]string{
		"10.1.1.0/24":             "10.1.1.0-10.1.2.0",
		"10.1.1.0/24 10.1.2.0/24": "10.1.1.0-10.1.3.0",
		"10.1.2.0/24 10.1.1.0/24 10.1.0.0/16 10.3.0.0/16": "10.1.0.0-10.2.0.0 10.3.0.0-10.4.0.0",
		"10.1.0.0/16 10.1.0.0/16 10.1.255.0/24":           "10.1.0.0-10.2.0.0",
		"240.0.0.0/4 255.255.255.255/32 10.0.0.0/8":       "10.0.0.0-11.0.0.0 240.0.0.0",
		"0.0.0.0/0 10.0.0.0/8":                            "0.0.0.0",
		"fd00::/64 10.1.0.0/16":                           "10.1.0.0-10.2.0.0",
		"fd00::/64":                                       "",
	} {
		var list []netip.Prefix
		for _, p := range strings.Fields(prefixes) {
			list = append(list, netip.MustParsePrefix(p))
		}
		var got strings.Builder
		for i, e := range intervals(list, true) {
			a, _ := netip.AddrFromSlice(e.Key)
			switch {
			case e.IntervalEnd:
				fmt.Fprint(&got, "-", a)
			case i > 0:
				fmt.Fprint(&got, " ", a)
			default:
				fmt.Fprint(&got, a)
			}
		}
		if got.String() != want {
			t.Errorf("%s: got %q, want %q", prefixes, &got, want)
		}
	}
}
