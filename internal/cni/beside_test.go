// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"testing"
)

// TestAddressBesideOtherParent has two networks at the bridge or the host's routes that name another parent: one address is refused all the same.
func TestAddressBesideOtherParent(t *testing.T) {
	for _, link := range []string{"veth", "bridge"} {
		t.Run(link, func(t *testing.T) {
			f := newFixture(t)
			command(t, f.host, "ip link add uplink2 type veth peer name far2")
			command(t, f.host, "ip link set uplink2 up")
			one, two := taking(link, "off")
			two = bytes.ReplaceAll(two, []byte(`"uplink"`), []byte(`"uplink2"`))
			first, second := f.added("a", one), f.pod("b", two)
			if err := f.add(second); err == nil {
				t.Error("the second pod has the address too")
			}
			f.must(f.del(second))
			f.must(f.del(first))
		})
	}
}
