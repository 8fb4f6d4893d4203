// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/rows"
	"mustang/internal/testkit"
)

// TestApart leaves out the addresses that a pod may use in addition to its own.
func TestApart(t *testing.T) {
	for _, c := range []struct{ addresses, allowed, want string }{
		{"10.0.0.1 fd00::1", "", "10.0.0.1 fd00::1"},
		{"10.0.0.1 10.0.0.200", "10.0.0.200/32", "10.0.0.1"},
		{"10.0.0.200", "10.0.0.200/32", ""},
		{"10.0.0.1 10.0.0.201 fd00::1 fd00:200::5", "10.0.0.200/30 fd00:200::/64", "10.0.0.1 fd00::1"},
		{"10.0.0.1", "10.0.0.0/8", "10.0.0.1"},
		{"10.0.0.1 fd00::1", "0.0.0.0/0", "fd00::1 10.0.0.1"},
		{"10.0.0.1 10.0.0.200", "10.0.0.0/8 10.0.0.200/32", "10.0.0.1"},
	} {
		t.Run(c.addresses+" allowed "+c.allowed, func(t *testing.T) {
			var addresses []netip.Addr
			for _, a := range strings.Fields(c.addresses) {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			var allowed []netip.Prefix
			for _, p := range strings.Fields(c.allowed) {
				prefix := netip.MustParsePrefix(p)
				back := rows.DecodePrefix(rows.EncodeAddr(prefix.Addr()), rows.EncodeMask(prefix))
				testkit.Check(t, back == prefix, "prefix %s is %s after the row", prefix, back)
				allowed = append(allowed, prefix)
			}
			got := strings.Trim(fmt.Sprint(apart(addresses, allowed)), "[]")
			testkit.Check(t, got == c.want, "%q, want %q", got, c.want)
		})
	}
}
