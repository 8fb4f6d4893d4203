// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"mustang/internal/testkit"
)

// TestRemotes makes ways to other nodes, changes and deletes some. Equal ways are not written.
func TestRemotes(t *testing.T) {
	d := openTest(t)
	node, local := netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::1")
	way := func(text string, mtu int) Remote {
		return Remote{Range: netip.MustParsePrefix(text), NextHop: node, IfIndex: 7, MTU: mtu, Node: node, Local: local,
			NodeMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, LocalMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, VNI: 0x6d7374, Port: 4789}
	}
	native := Remote{Range: netip.MustParsePrefix("10.1.3.0/24"), NextHop: netip.MustParseAddr("192.0.2.3"), IfIndex: 7,
		MTU: 1500}
	generation := func() uint64 { // node_state.rows, the first field
		return binary.NativeEndian.Uint64(must(d.objects.NodeState.Map.LookupBytes(uint32(0)))(t))
	}
	for _, step := range []struct {
		what    string
		want    []Remote
		changed bool
	}{
		{"none", nil, false},
		{"of both families", []Remote{way("10.1.2.0/24", 1430), native, way("fd00:1:2::/64", 1430)}, true},
		{"the same", []Remote{way("fd00:1:2::/64", 1430), way("10.1.2.0/24", 1430), native}, false},
		{"another MTU, and one fewer", []Remote{way("10.1.2.0/24", 1400), native}, true},
		{"one in another", []Remote{way("10.1.2.0/24", 1400), way("10.1.2.128/25", 1400), native}, true},
		{"without a tunnel", []Remote{native}, true},
		{"none again", nil, true},
	} {
		before := generation()
		changed := must(d.Remotes().Apply(t.Context(), step.want))(t)
		testkit.Check(t, changed == step.changed && (generation() != before) == step.changed,
			"%s: changed %v, generation from %d to %d", step.what, changed, before, generation())
		got, want := map[netip.Prefix]Remote{}, map[netip.Prefix]Remote{}
		for _, w := range must(d.Remotes().List())(t) {
			got[w.Range] = w
		}
		for _, w := range step.want {
			want[w.Range] = w
		}
		testkit.Check(t, reflect.DeepEqual(got, want), "%s: %+v, want %+v", step.what, got, want)
	}
}
