// SPDX-License-Identifier: Apache-2.0

package podlink

// Seen describes the device of a pod: its kind, the kind of its master, whether it is an ipvlan whose packets the host routes, and
// whether it has a MAC address.
type Seen struct {
	Kind, Master     string
	Layer3, Ethernet bool
}

// ModeOf returns the name of the link mode that a device belongs to. Modes ipvlan-l3 and -l3s look alike, and so do those of netkit.
// It is the device's kind if no mode makes such a device.
func ModeOf(s Seen) string {
	switch {
	case s.Kind == "veth" && s.Master == "bridge":
		return "bridge"
	case s.Kind == "veth" && s.Master == "openvswitch":
		return "ovs-veth"
	case s.Kind == "openvswitch":
		return "ovs-internal"
	case s.Kind == "ipvlan" && s.Layer3:
		return "ipvlan-l3"
	case s.Kind == "ipvlan":
		return "ipvlan-l2"
	case s.Kind == "tun" && s.Ethernet:
		return "tap"
	}
	return s.Kind
}
