// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"net/netip"
	"testing"
)

func TestPing(t *testing.T) {
	ns := Namespace(t, "ping")
	for _, addr := range []string{"127.0.0.1", "::1"} {
		for _, size := range []int{0, 1, 1400, 9000} {
			if err := Ping(ns, netip.MustParseAddr(addr), size); err != nil {
				t.Error(err)
			}
		}
	}
	if err := Ping(ns, netip.MustParseAddr("192.0.2.1"), 8); err == nil {
		t.Error("an address that is nowhere answers")
	}
}
