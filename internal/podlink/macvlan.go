// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// newMacvlan gives each device on the uplink a MAC address of its own.
func newMacvlan() Mode {
	return linkMode{subinterface{
		name: "macvlan", kind: "macvlan", hostDevice: MacvlanHostDevice, ownMAC: true,
		feature: "macvlan devices", since: "2.6.33",
	}}
}

// In the ipvlan modes all devices on the uplink have its MAC address, and the kernel distinguishes packets by IP
// address. In layer 2, devices are neighbours as on an Ethernet. In layer 3 they have no neighbours, and packets for
// none of them leave through the uplink. For IPv4 only the host's routes through the uplink count then, so pods of
// other link modes on the host are unreachable. L3S is like L3, but packets from the uplink pass the host's netfilter
// hooks.
func newIPVLANL2() Mode { return linkMode{newIPVLAN(netlink.IPVLAN_MODE_L2)} }

func newIPVLANL3() Mode { return linkMode{newIPVLAN(netlink.IPVLAN_MODE_L3)} }

func newIPVLANL3S() Mode {
	s := newIPVLAN(netlink.IPVLAN_MODE_L3S)
	s.feature, s.since = "ipvlan devices in mode l3s", "4.9"
	return linkMode{s}
}

func newIPVLAN(mode netlink.IPVlanMode) subinterface {
	return subinterface{
		name: "ipvlan-" + ipvlanMode(mode), kind: "ipvlan", hostDevice: IPVLANHostDevice,
		layer3: mode != netlink.IPVLAN_MODE_L2, mode: mode, feature: "ipvlan devices", since: "3.19",
	}
}

// device is a device to create. One of ipvlan has the uplink's MAC address, which can't be changed.
func (s subinterface) device(attrs netlink.LinkAttrs) (_ netlink.Link, err error) {
	if !s.ownMAC {
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: s.mode, Flag: netlink.IPVLAN_FLAG_BRIDGE}, nil
	}
	if attrs.HardwareAddr == nil {
		attrs.HardwareAddr, err = newMAC()
	}
	return &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}, err
}

// deviation is the difference of a device from one of this mode, or empty.
func (s subinterface) deviation(link netlink.Link) string {
	macvlan, _ := link.(*netlink.Macvlan)
	ipvlan, _ := link.(*netlink.IPVlan)
	switch {
	case s.ownMAC && macvlan == nil:
		return "is a " + kindOf(link) + ", not a macvlan"
	case s.ownMAC && macvlan.Mode != netlink.MACVLAN_MODE_BRIDGE:
		return "is not in bridge mode"
	case s.ownMAC:
	case ipvlan == nil:
		return "is a " + kindOf(link) + ", not an ipvlan"
	case ipvlan.Mode != s.mode:
		return "is in mode " + ipvlanMode(ipvlan.Mode) + ", not " + ipvlanMode(s.mode)
	case ipvlan.Flag != netlink.IPVLAN_FLAG_BRIDGE:
		return "isolates pods from each other (private or VEPA)"
	}
	return ""
}

func ipvlanMode(mode netlink.IPVlanMode) string {
	switch mode {
	case netlink.IPVLAN_MODE_L2:
		return "l2"
	case netlink.IPVLAN_MODE_L3:
		return "l3"
	case netlink.IPVLAN_MODE_L3S:
		return "l3s"
	}
	return fmt.Sprintf("(%d)", mode)
}

// hostRoutes are the host's routes to a pod. On Ethernet the gateways' prefixes suffice, unless there are other
// routers: the host may then have their network's prefix on the uplink, through which it does not reach pods. An address outside of the host's
// prefix gets no route: it can be any that a DHCP server names. Delete does not know the prefixes.
func (s subinterface) hostRoutes(network Network, pod Pod) []Route {
	if s.layer3 {
		return pod.hostRoutes(network)
	}
	return slices.DeleteFunc(pod.hostRoutes(network), func(r Route) bool {
		gateway, known := network.gateway(r.Dst.Addr())
		return len(network.Routers) == 0 || known && !gateway.Contains(r.Dst.Addr())
	})
}

// checkDevice checks that a device is one of this mode on the uplink.
func (s subinterface) checkDevice(c *checker, h nsHandle, link, uplink netlink.Link) {
	if link == nil {
		return
	}
	if deviation := s.deviation(link); deviation != "" {
		c.add("device %q in %q %s", link.Attrs().Name, h.ns.Name(), deviation)
	}
	if uplink != nil && link.Attrs().ParentIndex != s.parentIndex(uplink) {
		c.add("device %q in %q is not on uplink %q", link.Attrs().Name, h.ns.Name(), uplink.Attrs().Name)
	}
}
