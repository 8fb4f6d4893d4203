// SPDX-License-Identifier: Apache-2.0

package podlink

import "testing"

func TestMode(t *testing.T) {
	for seen, want := range map[Seen]string{
		{Kind: "veth", Ethernet: true}:                        "veth",
		{Kind: "veth", Master: "bridge", Ethernet: true}:      "bridge",
		{Kind: "veth", Master: "openvswitch", Ethernet: true}: "ovs-veth",
		{Kind: "openvswitch", Ethernet: true}:                 "ovs-internal",
		{Kind: "macvlan", Ethernet: true}:                     "macvlan",
		{Kind: "ipvlan", Ethernet: true}:                      "ipvlan-l2",
		{Kind: "ipvlan", Ethernet: true, Layer3: true}:        "ipvlan-l3",
		{Kind: "tun", Ethernet: true}:                         "tap",
		{Kind: "tun"}:                                         "tun",
		{}:                                                    "",
	} {
		if mode := ModeOf(seen); mode != want {
			t.Errorf("%+v: %q, want %q", seen, mode, want)
		}
	}
}
