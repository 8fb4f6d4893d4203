// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// newMacvlan gives each device on the uplink a MAC address of its own.
func newMacvlan() Mode { return linkMode{subinterface{macvlan{}}} }

type macvlan struct{}

func (macvlan) name() string { return "macvlan" }

func (macvlan) kind() string { return "macvlan" }

func (macvlan) hostDevice() string { return MacvlanHostDevice }

func (macvlan) layer3() bool { return false }

func (macvlan) exclusive() bool { return false }

func (macvlan) ownMAC() bool { return true }

func (macvlan) requirement() requirement {
	return requirement{feature: "macvlan devices", module: "macvlan", since: "2.6.33"}
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

// In the ipvlan modes all devices on the uplink have its MAC address, and the kernel distinguishes packets by IP
// address. In layer 2, devices are neighbours as on an Ethernet. In layer 3 they have no neighbours, and packets for
// none of them leave through the uplink. For IPv4 only the host's routes through the uplink count then, so pods of
// other link modes on the host are unreachable. L3S is like L3, but packets from the uplink pass the host's netfilter
// hooks.
func newIPVLANL2() Mode { return linkMode{subinterface{ipvlan{netlink.IPVLAN_MODE_L2}}} }

func newIPVLANL3() Mode { return linkMode{subinterface{ipvlan{netlink.IPVLAN_MODE_L3}}} }

func newIPVLANL3S() Mode { return linkMode{subinterface{ipvlan{netlink.IPVLAN_MODE_L3S}}} }

type ipvlan struct{ mode netlink.IPVlanMode }

func (i ipvlan) name() string { return "ipvlan-" + ipvlanMode(i.mode) }

func (ipvlan) kind() string { return "ipvlan" }

func (ipvlan) hostDevice() string { return IPVLANHostDevice }

func (i ipvlan) layer3() bool { return i.mode != netlink.IPVLAN_MODE_L2 }

// exclusive is true: a new device changes the mode of all others on its uplink.
func (ipvlan) exclusive() bool { return true }

func (ipvlan) ownMAC() bool { return false }

func (i ipvlan) requirement() requirement {
	if i.mode == netlink.IPVLAN_MODE_L3S {
		return requirement{feature: "ipvlan devices in mode l3s", module: "ipvlan", since: "4.9"}
	}
	return requirement{feature: "ipvlan devices", module: "ipvlan", since: "3.19"}
}

// device has the uplink's MAC address, which can't be changed.
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
func (s subinterface) hostRoutes(network Network, pod Pod) []route {
	if s.layer3() {
		return pod.hostRoutes(network)
	}
	return slices.DeleteFunc(pod.hostRoutes(network), func(r route) bool {
		gateway, known := network.gateway(r.dst.Addr())
		return len(network.Routers) == 0 || known && !gateway.Contains(r.dst.Addr())
	})
}

// checkDevice checks that a device is one of this mode on the uplink.
func (s subinterface) checkDevice(c *checker, h nsHandle, link, uplink netlink.Link) {
	if c.err != nil || link == nil {
		return
	}
	if deviation := s.deviation(link); deviation != "" {
		c.add("device %q in %q %s", link.Attrs().Name, h.ns.Name(), deviation)
	}
	if uplink != nil && link.Attrs().ParentIndex != s.parentIndex(uplink) {
		c.add("device %q in %q is not on uplink %q", link.Attrs().Name, h.ns.Name(), uplink.Attrs().Name)
	}
}
