// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// podDevice is a pod's device and the attach point of its programs.
type podDevice struct {
	Point     objects.AttachPoint
	Owner     service.Owner    // as in the spec, like Pod, Allowed, Unguarded and DHCP
	Pod       *policy.Pod      //
	HostNS    *netns.Namespace // the host's network namespace
	Host      uint64           // its cookie
	On        *netns.Namespace // where IfIndex is
	IfIndex   int
	PodMAC    net.HardwareAddr // six bytes, zero if the device lacks a MAC address; so is NodeMAC
	NodeMAC   net.HardwareAddr // the node's on the pod's link
	Segment   int              // index of the parent or the bridge that joins pods without a host's side; or 0
	Parent    int              // the host's device that the pod's own is on, if it has a MAC address; or 0
	Entrances []int            // devices by which pods on the same parent reach the host
	Loopback  bool             // pods on the same parent reach the host by its loopback device, where that is in layer 3
	Netns     uint64           // cookie of the pod's network namespace, or 0
	Peer      int              // index of the pod's own device, of a netkit; or 0
	Flags     uint32           // of the rows: how packets enter the pod from the host's side
	Addresses []netip.Addr     // to which other pods can send
	LinkLocal netip.Addr       // the pod's IPv6 link-local address; invalid if it has none
	Allowed   []netip.Prefix
	Unguarded bool
	DHCP      bool
	Switched  bool             // pods are joined by a switch that may remake packets
	fixedMAC  bool             // the MAC address is the pod's own, not a parent's
	opened    *netns.Namespace // to be closed
}

// Flags of endpoints with a host side, by the kind of the link.
const (
	intoPeer = objects.EndpointOnHost | objects.EndpointEgress | objects.EndpointPeer
	intoTap  = objects.EndpointOnHost | objects.EndpointEgress
	intoTun  = objects.EndpointOnHost | objects.EndpointEgress | objects.EndpointL3
)

// Close frees what findTarget opened.
func (d *podDevice) Close() {
	if d.opened != nil {
		_ = d.opened.Close()
	}
}

func findTarget(a EndpointSpec) (_ *podDevice, err error) {
	if a.Namespace == nil && a.HostIfName == "" {
		return nil, errors.New("no network namespace for the pod")
	}
	if err := a.checkAllowed(); err != nil {
		return nil, fmt.Errorf("interface %s: %w", a, err)
	}
	d := &podDevice{Owner: a.Owner, Pod: a.Pod, Allowed: a.Allowed, Unguarded: a.Unguarded, DHCP: a.DHCP}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if a.Host == nil {
		if a.Host, err = netns.Current(); err != nil {
			return nil, err
		}
		d.opened = a.Host
	}
	d.HostNS = a.Host
	if d.Host, err = a.Host.Cookie(); err != nil {
		return nil, err
	}
	device, err := d.inPod(a)
	if err == nil {
		err = d.locate(a, device)
	}
	if err != nil {
		return nil, err
	}
	if a.Shaped {
		if d.Point == objects.AttachPod {
			return nil, fmt.Errorf("interface %s: no device on the host with a queue that could limit the rate", a)
		}
		d.Flags &^= objects.EndpointPeer
	}
	d.PodMAC, d.NodeMAC = wholeMAC(d.PodMAC), wholeMAC(d.NodeMAC)
	return d, nil
}

// requireAddress returns an error that matches ErrNoAddress if no other pod could send to the device.
func (d *podDevice) requireAddress(a EndpointSpec) error {
	if len(d.Addresses) == 0 {
		return fmt.Errorf("interface %s has %w", a, ErrNoAddress)
	}
	return nil
}

func (d *podDevice) inPod(a EndpointSpec) (device rtnl.Device, err error) {
	d.Addresses = reachable(a.Addresses)
	if a.Namespace == nil {
		device.MAC = a.MAC
	} else {
		if d.Netns, err = a.Namespace.Cookie(); err != nil {
			return device, err
		}
		if device, err = rtnl.In(a.Namespace).Device(a.IfName); err != nil {
			return device, err
		}
		d.fixedMAC = device.Kind != "ipvlan"
		if len(a.Addresses) == 0 {
			d.Addresses = apart(reachable(rtnl.Addrs(device.Addrs)), a.Allowed)
		}
	}
	d.PodMAC, d.LinkLocal = device.MAC, linkLocal(device)
	return device, nil
}

// linkLocal returns the IPv6 link-local address of a device: its own, or its MAC address's (RFC 4291, appendix A).
func linkLocal(device rtnl.Device) netip.Addr {
	for _, p := range device.Addrs {
		if a := p.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
			return a.WithZone("")
		}
	}
	mac := device.MAC
	if len(mac) != 6 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// wholeMAC returns six bytes, zero for a device without a MAC address.
func wholeMAC(mac net.HardwareAddr) net.HardwareAddr {
	whole := make(net.HardwareAddr, 6)
	copy(whole, mac)
	return whole
}

// locate finds the attach point for a device in a pod. Without a namespace, the device has only its MAC address.
func (d *podDevice) locate(a EndpointSpec, device rtnl.Device) error {
	switch {
	case a.Segment != "":
		return d.onSegment(a, device)
	case a.HostIfName != "":
		return d.onNamed(a, device)
	}
	switch device.Kind {
	case "veth", "netkit":
		return d.onPeer(a, device)
	case "macvlan", "ipvlan":
		return d.onParent(a, device)
	case "tun":
		return fmt.Errorf("interface %s is of kind \"tun\": the host's device of the link must be given", a)
	default:
		return fmt.Errorf("interface %s is of kind %q: only veth, netkit, macvlan, ipvlan and tun are supported, or a "+
			"segment must be given", a, device.Kind)
	}
}

// onPeer finds the peer of a veth or netkit, whose MAC address is the node's for the pod.
func (d *podDevice) onPeer(a EndpointSpec, device rtnl.Device) error {
	o, err := rtnl.In(a.Host).DeviceByIndex(device.PeerIndex)
	if errors.Is(err, os.ErrNotExist) || err == nil && (o.Kind != device.Kind || o.PeerIndex != device.Index) {
		return fmt.Errorf("interface %s: the other end is not in network namespace %q: name the pod's host by --host-netns",
			a, a.Host.Name())
	}
	if err != nil {
		return err
	}
	d.Point, d.On, d.IfIndex, d.NodeMAC, d.Flags = objects.AttachHost, a.Host, o.Index, o.MAC, intoPeer
	if device.Kind == "netkit" {
		d.Point, d.Peer = objects.AttachNetkit, device.Index
	}
	return nil
}

// onNamed selects the host's device with the given name. TUN devices lack a MAC address.
func (d *podDevice) onNamed(a EndpointSpec, device rtnl.Device) error {
	o, err := rtnl.In(a.Host).Device(a.HostIfName)
	if err != nil {
		return err
	}
	if o.Kind != "tun" {
		return fmt.Errorf("interface %s: %q in network namespace %q is of kind %q; want kind tun", a, o.Name,
			a.Host.Name(), o.Kind)
	}
	if len(device.MAC) != len(o.MAC) {
		return fmt.Errorf("interface %s has a MAC address of %d bytes, and %q in network namespace %q one of %d", a,
			len(device.MAC), o.Name, a.Host.Name(), len(o.MAC))
	}
	d.Point, d.On, d.IfIndex, d.NodeMAC, d.Flags = objects.AttachHost, a.Host, o.Index, o.MAC, intoTap
	if len(o.MAC) == 0 {
		d.Point, d.Flags = objects.AttachTun, intoTun
	}
	return nil
}

// onParent selects the pod's own device, for kinds without a host's side. The parent is expected in the host.
func (d *podDevice) onParent(a EndpointSpec, device rtnl.Device) error {
	others, err := rtnl.In(a.Host).DevicesOfKind(device.Kind)
	if err != nil {
		return err
	}
	parent, err := rtnl.In(a.Host).DeviceByIndex(device.ParentIndex)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	d.Point, d.On, d.IfIndex, d.Segment = objects.AttachPod, a.Namespace, device.Index, device.ParentIndex
	d.NodeMAC = parent.MAC
	if len(parent.MAC) > 0 {
		d.Parent = parent.Index
		if device.Kind == "ipvlan" { // whose pods reach the parent itself too, and choose its mode
			d.Entrances, d.Loopback = []int{d.Parent}, true
		}
	}
	first := true
	for _, o := range others {
		if o.ParentIndex != device.ParentIndex {
			continue
		}
		if first {
			d.NodeMAC, first = o.MAC, false
		}
		d.Entrances = append(d.Entrances, o.Index)
	}
	return nil
}

// onSegment selects the pod's own device, for pods joined by a switch that is not their parent in the kernel.
func (d *podDevice) onSegment(a EndpointSpec, device rtnl.Device) error {
	if a.Namespace == nil {
		return fmt.Errorf("segment %q: no network namespace for the pod", a.Segment)
	}
	if len(device.MAC) == 0 || device.Kind == "loopback" {
		return fmt.Errorf("interface %s is of kind %q: no MAC address, which pods in segment %q need", a,
			device.Kind, a.Segment)
	}
	o, err := rtnl.In(a.Host).Device(a.Segment)
	if err != nil {
		return err
	}
	d.Point, d.On, d.IfIndex, d.Segment, d.NodeMAC = objects.AttachPod, a.Namespace, device.Index, o.Index, o.MAC
	d.Switched = true
	return nil
}

// is reports whether an endpoint is on this device. The kernel reuses no cookie of a namespace.
func (d *podDevice) is(e Endpoint) bool {
	return e.Host != d.Point.OnPod() && e.IfIndex == d.IfIndex && e.netns == d.Netns
}

func (d *podDevice) links(id uint32) []objects.Link {
	return objects.Link{ID: uint64(id)}.At(d.Point.Hooks())
}

func (d *podDevice) endpoints(id uint32) []Endpoint {
	rows := make([]Endpoint, 0, len(d.Addresses))
	for _, ip := range d.Addresses {
		rows = append(rows, Endpoint{
			ID: id, IP: ip, Host: !d.Point.OnPod(), IfIndex: d.IfIndex, PodMAC: d.PodMAC, NodeMAC: d.NodeMAC,
			Owner: d.Owner, flags: d.Flags, segment: uint32(d.Segment), netns: d.Netns,
		})
	}
	sortEndpoints(rows)
	return rows
}
