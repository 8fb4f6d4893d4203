// SPDX-License-Identifier: Apache-2.0

package podlink

import "github.com/vishvananda/netlink"

// newMacvlan is the mode in which each device on the uplink has a MAC address of
// its own.
func newMacvlan() Mode { return ownMACs{stacked{macvlan{}}} }

type macvlan struct{}

func (macvlan) name() string { return "macvlan" }

func (macvlan) kind() string { return "macvlan" }

func (macvlan) slave() string { return HostSlave }

func (macvlan) layer3() bool { return false }

func (macvlan) exclusive() bool { return false }

func (macvlan) ownMAC() bool { return true }

func (macvlan) requires() requirement {
	return requirement{
		feature: "macvlan devices", module: "macvlan", since: "2.6.33",
		try: func(s side) error {
			parent, err := s.link(probeName)
			if err != nil {
				return err
			}
			device := &netlink.Macvlan{LinkAttrs: attrs("probe2"), Mode: netlink.MACVLAN_MODE_BRIDGE}
			device.ParentIndex = parent.Attrs().Index
			return s.LinkAdd(device)
		},
	}
}

func (macvlan) device(attrs netlink.LinkAttrs) (_ netlink.Link, err error) {
	device := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	if device.HardwareAddr == nil {
		device.HardwareAddr, err = newMAC()
	}
	return device, err
}

func (macvlan) deviation(link netlink.Link) string {
	device, ok := link.(*netlink.Macvlan)
	switch {
	case !ok:
		return "is a " + kindOf(link) + ", not a macvlan"
	case device.Mode != netlink.MACVLAN_MODE_BRIDGE:
		return "is not in bridge mode"
	}
	return ""
}
