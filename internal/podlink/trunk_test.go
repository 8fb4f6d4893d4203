// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
)

// testTunnel is a VXLAN to nowhere.
func testTunnel() VXLAN {
	return VXLAN{ID: 42, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2")}
}

// TestTrunk has an uplink and a tunnel be ports of each kind of bridge, with pods
// that must not notice, and takes them away again.
func TestTrunk(t *testing.T) {
	for _, name := range []string{"bridge", "ovs-veth"} {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			before := describe(t, f.network.Host)
			f.network.Trunk, f.network.VXLAN, f.network.MTU = uplinkName, testTunnel(), 1450
			for range 2 { // the second finds all as it is to be
				if err := f.mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
			}
			f.create(t, f.newPod(t, 0))
			f.create(t, f.newPod(t, 1))
			if err := f.mode.Check(f.network, f.pods[0]); err != nil {
				t.Error(err)
			}
			uplink, bridge := deviceOf(t, f.network.Host, uplinkName), deviceOf(t, f.network.Host, DefaultBridge)
			if bytes.Equal(uplink.MAC, bridge.MAC) || bridge.MTU != 1450 {
				t.Errorf("bridge has MAC %v, its trunk %v, and MTU %d", bridge.MAC, uplink.MAC, bridge.MTU)
			}
			outside := question{f.network.Host, "wire", netip.MustParseAddr("192.168.10.77"), f.network.Gateways[0].Addr()}
			outside.wantAnswer(t, bridge.MAC)
			echoOnce(t, f)
			for _, pod := range f.pods {
				if err := f.mode.Delete(f.network, pod); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.mode.Teardown(f.network); err != nil {
				t.Fatal(err)
			}
			if got := describe(t, f.network.Host); got != before {
				t.Errorf("left behind:\n%s", difference(before, got))
			}
		})
	}
}

// deviceOf reads a device of a namespace.
func deviceOf(t *testing.T, ns *nl.Namespace, name string) nl.Device {
	t.Helper()
	device, err := ns.Device(name)
	if err != nil {
		t.Fatal(err)
	}
	return device
}

// TestTrunkDeviations spoils what joins a bridge to other hosts, which Check must
// notice, and Setup repair.
func TestTrunkDeviations(t *testing.T) {
	free := func(s side, link netlink.Link) error { return s.LinkSetNoMaster(link) }
	remove := func(s side, link netlink.Link) error { return s.LinkDel(link) }
	for _, row := range []deviation{
		{"trunk is free", []string{"bridge"}, inHost(uplinkName, free), `device "eth0" in`},
		{"trunk is down", []string{"bridge", "ovs-veth"}, inHost(uplinkName, down), `device "eth0" in`},
		{"trunk has IPv6", []string{"bridge", "ovs-veth"}, setSysctl(true, "net/ipv6/conf/eth0/disable_ipv6", "0"),
			"eth0/disable_ipv6 in"},
		{"trunk answers ARP", []string{"ovs-veth"}, setSysctl(true, "net/ipv4/conf/eth0/arp_ignore", "0"), "eth0/arp_ignore in"},
		{"no VXLAN device", []string{"bridge"}, inHost(VXLANDevice, remove), `trunk "mst-vxlan" is missing`},
		{"MTU of VXLAN device", []string{"bridge"}, inHost(VXLANDevice, func(s side, link netlink.Link) error {
			return s.LinkSetMTU(link, 1400)
		}), "has MTU 1400, not 1450"},
		{"no port", []string{"ovs-veth"}, inOVS(func(s ovsSwitch) error { return s.deletePort(uplinkName) }), `port "eth0" is missing`},
		{"no VXLAN port", []string{"ovs-veth"}, inOVS(func(s ovsSwitch) error {
			return s.deletePort(VXLANDevice)
		}), `port "mst-vxlan" is missing`},
	} {
		for _, name := range row.modes {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				f := newHostOf(t, name)
				f.network.Trunk, f.network.VXLAN, f.network.MTU = uplinkName, testTunnel(), 1450
				if err := f.mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				f.create(t, f.newPod(t, 0))
				row.spoil(t, f)
				if err := f.mode.Check(f.network, f.pods[0]); err == nil || !strings.Contains(err.Error(), row.says) {
					t.Errorf("error is %v, wanted: %s", err, row.says)
				}
				if err := f.mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				if err := f.mode.Check(f.network, f.pods[0]); err != nil {
					t.Errorf("after Setup: %v", err)
				}
			})
		}
	}
}

// TestTrunkFails has Setup fail at what joins a bridge to other hosts, and
// compares the host before and after.
func TestTrunkFails(t *testing.T) {
	for _, row := range []setupFailure{
		{"trunk is missing", []string{"bridge", "ovs-veth"}, func(s *situation) { s.f.network.Trunk = "none0" }, `"none0"`},
		{"trunk's name", []string{"bridge"}, func(s *situation) { s.f.network.Trunk = "a/b" }, "trunk: the name"},
		{"trunk is another bridge's port", []string{"bridge"}, func(s *situation) {
			addBridge(s.t, s.f.network.Host, "br0")
			withHandle(s.t, s.f.network.Host, func(host side) error { return host.LinkSetMaster(byName(uplinkName), byName("br0")) })
		}, "port of another switch"},
		{"VXLAN id", []string{"bridge", "ovs-veth"}, func(s *situation) { s.f.network.VXLAN.ID = 1 << 24 }, "VXLAN id 16777216"},
		{"VXLAN to itself", []string{"bridge"}, func(s *situation) { s.f.network.VXLAN.Remote = s.f.network.VXLAN.Local }, "VXLAN from"},
		{"VXLAN device of another", []string{"bridge"}, func(s *situation) { addBridge(s.t, s.f.network.Host, VXLANDevice) }, "not a vxlan"},
	} {
		for _, name := range row.modes {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				f := newHostOf(t, name)
				f.network.Trunk, f.network.VXLAN = uplinkName, testTunnel()
				row.arrange(&situation{t: t, f: f})
				before := describe(t, f.network.Host)
				if err := f.mode.Setup(f.network); err == nil || !strings.Contains(err.Error(), row.message) {
					t.Errorf("error is %v, wanted: %s", err, row.message)
				}
				if got := describe(t, f.network.Host); got != before {
					t.Errorf("left behind:\n%s", difference(before, got))
				}
			})
		}
	}
}
