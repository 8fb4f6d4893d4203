// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// The modes in which all devices on the uplink have its MAC address, and packets
// are told apart by their IP addresses. In layer 2, devices find each other like
// on an Ethernet. In layer 3 they have no neighbours, and what is for none of them
// leaves by the uplink. For IPv4 only the host's routes by the uplink count then,
// so pods of other link modes on the host are out of reach. L3S is like L3, but
// what comes in from the uplink passes the host's netfilter hooks.
func newIPVLANL2() Mode  { return stacked{ipvlan{netlink.IPVLAN_MODE_L2}} }
func newIPVLANL3() Mode  { return stacked{ipvlan{netlink.IPVLAN_MODE_L3}} }
func newIPVLANL3S() Mode { return stacked{ipvlan{netlink.IPVLAN_MODE_L3S}} }

type ipvlan struct{ mode netlink.IPVlanMode }

func (i ipvlan) name() string { return "ipvlan-" + ipvlanMode(i.mode) }

func (ipvlan) kind() string { return "ipvlan" }

func (ipvlan) slave() string { return IPVLANHostSlave }

func (i ipvlan) layer3() bool { return i.mode != netlink.IPVLAN_MODE_L2 }

// exclusive is true: a new device changes the mode of all others on its uplink.
func (ipvlan) exclusive() bool { return true }

func (ipvlan) ownMAC() bool { return false }

func (i ipvlan) requires() requirement {
	out := requirement{feature: "ipvlan devices", module: "ipvlan", since: "3.19"}
	if i.mode == netlink.IPVLAN_MODE_L3S {
		out.feature, out.since = "ipvlan devices in mode l3s", "4.9"
	}
	out.try = func(s side) error {
		parent, err := s.link(probeName)
		if err != nil {
			return err
		}
		device := &netlink.IPVlan{LinkAttrs: attrs("probe2"), Mode: i.mode}
		device.ParentIndex = parent.Attrs().Index
		return s.LinkAdd(device)
	}
	return out
}

// device has the uplink's MAC address, so it cannot be chosen.
func (i ipvlan) device(attrs netlink.LinkAttrs) (netlink.Link, error) {
	return &netlink.IPVlan{LinkAttrs: attrs, Mode: i.mode, Flag: netlink.IPVLAN_FLAG_BRIDGE}, nil
}

func (i ipvlan) deviation(link netlink.Link) string {
	device, ok := link.(*netlink.IPVlan)
	switch {
	case !ok:
		return "is a " + kindOf(link) + ", not an ipvlan"
	case device.Mode != i.mode:
		return "is in mode " + ipvlanMode(device.Mode) + ", not " + ipvlanMode(i.mode)
	case device.Flag != netlink.IPVLAN_FLAG_BRIDGE:
		return "keeps pods from reaching each other (private or VEPA)"
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
