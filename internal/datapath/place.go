// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"mustang/internal/nl"
)

// Flags of endpoints with a host side, by what the link is.
const (
	intoPeer = mustangEndpointFlagENDPOINT_EGRESS | mustangEndpointFlagENDPOINT_PEER
	intoTap  = mustangEndpointFlagENDPOINT_EGRESS
	intoTun  = mustangEndpointFlagENDPOINT_EGRESS | mustangEndpointFlagENDPOINT_L3
)

// locate finds the place for the programs of a device in a pod. The device is empty but for its MAC if the pod has no
// namespace.
func (t *target) locate(a Attach, device nl.Device) error {
	switch {
	case a.Segment != "":
		return t.onSegment(a, device)
	case a.HostIfName != "":
		return t.onNamed(a, device)
	}
	switch device.Kind {
	case "veth", "netkit":
		return t.onPeer(a, device)
	case "macvlan", "ipvlan":
		return t.onParent(a, device)
	case "tun":
		return fmt.Errorf("interface %s is of kind \"tun\": the host's device that belongs to it must be given", a)
	default:
		return fmt.Errorf("interface %s is of kind %q: endpoints are of kind veth, netkit, macvlan, ipvlan or tun, or in a "+
			"segment that must be given", a, device.Kind)
	}
}

// onPeer finds the other end of a veth or netkit, whose MAC the pod sees as the node's.
func (t *target) onPeer(a Attach, device nl.Device) error {
	o, err := a.Host.DeviceByIndex(device.PeerIndex)
	if errors.Is(err, os.ErrNotExist) || err == nil && (o.Kind != device.Kind || o.PeerIndex != device.Index) {
		return fmt.Errorf("interface %s: its peer is not in network namespace %q", a, a.Host.Name())
	}
	if err != nil {
		return err
	}
	t.onHost(a, o)
	if device.Kind == "netkit" {
		t.side = netkitSide
	}
	t.flags = intoPeer
	return nil
}

// onHost puts the programs on a device of the host.
func (t *target) onHost(a Attach, o nl.Device) {
	t.side, t.on, t.ifindex, t.nodeMAC = hostSide, a.Host, o.Index, o.MAC
}

// onNamed takes the device on the host that was given. TUN is what has no MAC.
func (t *target) onNamed(a Attach, device nl.Device) error {
	o, err := a.Host.Device(a.HostIfName)
	if err != nil {
		return err
	}
	if o.Kind != "tun" {
		return fmt.Errorf("interface %s: %q in network namespace %q is of kind %q and not of kind tun", a, o.Name,
			a.Host.Name(), o.Kind)
	}
	if len(device.MAC) != len(o.MAC) {
		return fmt.Errorf("interface %s has a MAC address of %d bytes, and %q in network namespace %q one of %d", a,
			len(device.MAC), o.Name, a.Host.Name(), len(o.MAC))
	}
	t.onHost(a, o)
	t.flags = intoTap
	if len(o.MAC) == 0 {
		t.side, t.flags = tunSide, intoTun
	}
	return nil
}

// onParent is for devices that have no other side. Parents are taken to be in the host's namespace, as they are where
// pods are made.
func (t *target) onParent(a Attach, device nl.Device) error {
	others, err := a.Host.DevicesOfKind(device.Kind)
	if err != nil {
		return err
	}
	t.side, t.on, t.ifindex, t.segment = podSide, a.Namespace, device.Index, device.ParentIndex
	for _, o := range others {
		if o.ParentIndex == device.ParentIndex {
			t.nodeMAC = o.MAC
			return nil
		}
	}
	parent, err := a.Host.DeviceByIndex(device.ParentIndex)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	t.nodeMAC = parent.MAC
	return nil
}

// onSegment is for pods whose devices a switch joins that the kernel does not know as their parent.
func (t *target) onSegment(a Attach, device nl.Device) error {
	if a.Namespace == nil {
		return fmt.Errorf("segment %q: no network namespace was given for the pod", a.Segment)
	}
	if len(device.MAC) == 0 || device.Kind == "loopback" {
		return fmt.Errorf("interface %s is of kind %q and has no MAC address to be reached by in segment %q", a,
			device.Kind, a.Segment)
	}
	o, err := a.Host.Device(a.Segment)
	if err != nil {
		return err
	}
	t.side, t.on, t.ifindex, t.segment, t.nodeMAC = podSide, a.Namespace, device.Index, o.Index, o.MAC
	return nil
}
