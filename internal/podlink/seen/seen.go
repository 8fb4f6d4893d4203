// SPDX-License-Identifier: Apache-2.0

// Package seen tells the link mode of a pod from its device.
package seen

// Device is what the device tells: its kind, that of what it is a port of, whether it is an ipvlan whose packets the host routes, and
// whether it has a MAC address.
type Device struct {
	Kind, Master     string
	Layer3, Ethernet bool
}

// Mode returns the name of the link mode, as far as the device tells it: modes ipvlan-l3 and -l3s look alike, and so do those of netkit. It
// is the device's kind where no mode has such.
func Mode(s Device) string {
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
