// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// setupFailure is a situation in which Setup must fail, and leave everything as
// it was, in each of its modes.
type setupFailure struct {
	name    string
	modes   []string
	arrange func(s *situation)
	message string
}

func setupFailures() []setupFailure {
	onHost := func(change func(host side) error) func(s *situation) {
		return func(s *situation) { withHandle(s.t, s.f.network.Host, change) }
	}
	return []setupFailure{
		{"uplink is missing", allStacked(), func(s *situation) { s.f.network.Uplink = "none0" }, `"none0"`},
		{"no uplink", allStacked(), func(s *situation) { s.f.network.Uplink = "" }, "uplink: the name is empty"},
		{"uplink is down", allStacked(), func(s *situation) { setDown(s.t, s.f.network.Host, uplinkName) }, "not up"},
		{"slave's name is taken", []string{"macvlan"}, func(s *situation) { addBridge(s.t, s.f.network.Host, HostSlave) }, HostSlave},
		{"slave's name is taken", allIPVLAN(), func(s *situation) {
			addBridge(s.t, s.f.network.Host, IPVLANHostSlave)
		}, "is a bridge, not an ipvlan"},
		{"uplink is a bridge's port", allStacked(), onHost(func(host side) error {
			if err := host.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("br0")}); err != nil {
				return err
			}
			return host.LinkSetMaster(byName(uplinkName), byName("br0"))
		}), `uplink "eth0"`},
		{"uplink has macvlan devices", allIPVLAN(), onHost(func(host side) error {
			return host.addOver(uplinkName, &netlink.Macvlan{LinkAttrs: attrs("mac0"), Mode: netlink.MACVLAN_MODE_BRIDGE})
		}), "in use by devices of another kind"},
		{"uplink has ipvlan devices in L3S mode", []string{"ipvlan-l2", "ipvlan-l3"}, onHost(func(host side) error {
			return host.addOver(uplinkName, &netlink.IPVlan{LinkAttrs: attrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L3S})
		}), `device "ipvl0"`},
		{"uplink has private ipvlan devices", []string{"ipvlan-l3s"}, onHost(func(host side) error {
			return host.addOver(uplinkName, &netlink.IPVlan{
				LinkAttrs: attrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L3S, Flag: netlink.IPVLAN_FLAG_PRIVATE,
			})
		}), "keeps pods from reaching each other"},
		{"uplink is an ipvlan device", allIPVLAN(), func(s *situation) {
			onHost(func(host side) error {
				return host.addOver(uplinkName, &netlink.IPVlan{LinkAttrs: attrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L2})
			})(s)
			s.f.network.Uplink = "ipvl0"
		}, "is itself a device of kind ipvlan"},
		{"MTU too small for IPv6", allOnGateways(), func(s *situation) { s.f.network.MTU = 1000 }, "MTU 1000 is less"},
		{"router's address is the host's", allOnGateways(), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("fd00:10::2")}
			withHandle(s.t, s.f.network.Host, func(host side) error {
				lo, err := host.link("lo")
				if err != nil {
					return err
				}
				_, err = host.addGateways(lo, []netip.Prefix{netip.MustParsePrefix("fd00:10::2/128")})
				return err
			})
		}, "address fd00:10::2, of a router that is not the host, is an address of"},
		{"router", append(allRouted(), stackedInLayer3()...), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("192.168.10.2")}
		}, "router 192.168.10.2: pods of link mode"},
		{"bridge's name is taken", allBridged(), func(s *situation) { s.f.network.Bridge = uplinkName }, "not a bridge"},
		{"bridge's name is too long", allBridged(), func(s *situation) { s.f.network.Bridge = "sixteen-letters-" }, "more than"},
		{"MTU too large", allBridged(), func(s *situation) { s.f.network.MTU = 70000 }, "MTU 70000"},
		{"invalid gateway", allRouted(), func(s *situation) { s.f.network.Gateways[0] = netip.Prefix{} }, "gateway"},
		{"IPv6 is off", allRouted(), func(s *situation) {
			if err := s.f.network.Host.SetSysctl("net/ipv6/conf/lo/disable_ipv6", "1"); err != nil {
				s.t.Fatal(err)
			}
		}, "fd00:10::1/128"},
	}
}

// byName is a device for those calls that need no more than its name.
func byName(name string) netlink.Link { return &netlink.GenericLink{LinkAttrs: attrs(name)} }

// addOver adds a device on another.
func (s side) addOver(parent string, device netlink.Link) error {
	link, err := s.link(parent)
	if err != nil {
		return err
	}
	device.Attrs().ParentIndex = link.Attrs().Index
	return s.LinkAdd(device)
}

// TestSetupFails has Setup fail, and compares the host before and after.
func TestSetupFails(t *testing.T) {
	for _, row := range setupFailures() {
		for _, name := range row.modes {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				f := newHostOf(t, name)
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
