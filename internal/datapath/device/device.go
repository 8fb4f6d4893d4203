// SPDX-License-Identifier: Apache-2.0

// Package device finds the device of a pod, says where the programs of its endpoint go, and keeps its source guard.
package device

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

// Spec names the device of a pod.
type Spec struct {
	// Owner is the client that the endpoint is made for.
	Owner service.Owner
	// Namespace is the pod's network namespace. It is nil for a pod without one on this machine, like a VM: HostIfName,
	// Addresses and MAC then describe the pod.
	Namespace *netns.Namespace
	// IfName is the device's name in the pod.
	IfName string
	// Host is the network namespace of the host's side of the link; nil is that of the calling thread.
	Host *netns.Namespace
	// HostIfName is the device in Host that gets the programs, for links whose two ends the kernel does not know as peers:
	// tap and tun. Empty otherwise.
	HostIfName string
	// Segment is a device in Host, such as a bridge of Open vSwitch, that joins pods of which each gets the programs on
	// its own device, and which reach each other by MAC address. Empty if the kind of the device tells all that.
	Segment string
	// Shaped delivers packets into the pod through the queue of the host's device (bpf_redirect) instead of past it, so
	// that a qdisc there limits their rate. It is an error if the link has no host's side.
	Shaped bool
	// Addresses are the pod's. If there are none, they are those of its device that are not Allowed; root of the pod can
	// choose these.
	Addresses []netip.Addr
	// Pod is what network policies may know of the pod: its namespace, name, labels and named ports. If it is nil, an
	// endpoint keeps what it has, and a new one is a pod of namespace default without labels.
	Pod *policy.Pod
	// Given, unless it is nil, names what the spec is to change of an endpoint that exists: it keeps all else, its MAC
	// address too.
	Given *Given
	// MAC is that of a pod without a Namespace, and ignored for others.
	MAC net.HardwareAddr
	// Allowed are prefixes that the pod may use as if they were its addresses: a router's, or those that move between
	// pods. At most MaxAllowed.
	Allowed []netip.Prefix
	// Unguarded is whether the pod may send from any address, and announce any.
	Unguarded bool
	// DHCP is whether the pod may ask a DHCP server for addresses.
	DHCP bool
}

// String names the device for messages.
func (a Spec) String() string {
	if a.Namespace == nil {
		return fmt.Sprintf("behind %q", a.HostIfName)
	}
	return fmt.Sprintf("%q in network namespace %q", a.IfName, a.Namespace.Name())
}

// Check returns an error if the device cannot be an endpoint: the device, its address or its peer is missing, or its
// kind is not supported. It changes nothing.
func (a Spec) Check() error {
	d, err := a.Find()
	if err != nil {
		return err
	}
	defer d.Close()
	return d.RequireAddress(a)
}

// Device is a pod's device and the attach point of its programs.
type Device struct {
	Point     objects.AttachPoint
	Owner     service.Owner              // as in the spec
	Pod       *policy.Pod                // as in the spec
	Host      uint64                     // cookie of the host's network namespace
	HostNS    *netns.Namespace           // that namespace
	HostHas   func() (netip.Addr, error) // the first address that the host has too
	On        *netns.Namespace           // where IfIndex is
	IfIndex   int
	PodMAC    net.HardwareAddr // six bytes, zero if the device has no MAC address, as NodeMAC
	NodeMAC   net.HardwareAddr // the node's on the pod's link
	Segment   int              // index of the parent or the bridge that joins pods without a host's side; or 0
	Parent    int              // the host's device that the pod's own is on, if it has a MAC address; or 0
	Entrances []int            // devices by which pods on the same parent reach the host
	Loopback  bool             // pods on the same parent reach the host by its loopback device, where that is in layer 3
	Netns     uint64           // cookie of the pod's network namespace, or 0
	Peer      int              // index of the pod's own device, of a netkit; or 0
	Flags     uint32           // of the rows: how packets enter the pod from the host's side
	Addresses []netip.Addr     // those that other pods can send to
	LinkLocal netip.Addr       // the pod's IPv6 link-local address; invalid if it has none
	Allowed   []netip.Prefix   // as in the spec
	Unguarded bool             // as in the spec
	DHCP      bool             // as in the spec
	Switched  bool             // pods are joined by a switch that may remake packets
	fixedMAC  bool             // the MAC address is the pod's own, and not that of a parent
	opened    *netns.Namespace // to be closed
}

// Close frees what Find opened.
func (d *Device) Close() {
	if d.opened != nil {
		_ = d.opened.Close()
	}
}

// ErrNoAddress reports that no other pod could send to a device.
var ErrNoAddress = errors.New("no address that other pods could send to")

// RequireAddress returns an error that matches ErrNoAddress if no other pod could send to the device.
func (d *Device) RequireAddress(a Spec) error {
	if len(d.Addresses) == 0 {
		return fmt.Errorf("interface %s has %w", a, ErrNoAddress)
	}
	return nil
}

// Find finds the device and the attach point.
func (a Spec) Find() (_ *Device, err error) {
	if a.Namespace == nil && a.HostIfName == "" {
		return nil, errors.New("no network namespace for the pod")
	}
	if err := checkAllowed(a.Allowed); err != nil {
		return nil, fmt.Errorf("interface %s: %w", a, err)
	}
	d := &Device{Owner: a.Owner, Pod: a.Pod, Allowed: a.Allowed, Unguarded: a.Unguarded, DHCP: a.DHCP}
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
	if d.Host, err = a.Host.Cookie(); err != nil {
		return nil, err
	}
	d.HostNS = a.Host
	d.HostHas = func() (netip.Addr, error) { return rtnl.In(a.Host).FirstLocal(d.Addresses) }
	device, err := d.inPod(a)
	if err != nil {
		return nil, err
	}
	if err := d.locate(a, device); err != nil {
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

// inPod reads the pod's device and addresses.
func (d *Device) inPod(a Spec) (device rtnl.Device, err error) {
	if a.Namespace == nil {
		d.PodMAC = a.MAC
		d.Addresses = reachable(a.Addresses)
		d.LinkLocal = linkLocal(a.MAC, nil)
		return rtnl.Device{MAC: a.MAC}, nil
	}
	if d.Netns, err = a.Namespace.Cookie(); err != nil {
		return device, err
	}
	if device, err = rtnl.In(a.Namespace).Device(a.IfName); err != nil {
		return device, err
	}
	d.PodMAC, d.fixedMAC = device.MAC, device.Kind != "ipvlan"
	d.Addresses = reachable(a.Addresses)
	if len(a.Addresses) == 0 {
		var addresses []netip.Addr
		for _, p := range device.Addrs {
			addresses = append(addresses, p.Addr())
		}
		d.Addresses = apart(reachable(addresses), a.Allowed)
	}
	d.LinkLocal = linkLocal(device.MAC, device.Addrs)
	return device, nil
}

// reachable returns the addresses that other pods can send to.
func reachable(all []netip.Addr) []netip.Addr {
	var addresses []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); a.IsGlobalUnicast() {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// wholeMAC returns six bytes, zero for a device without a MAC address.
func wholeMAC(mac net.HardwareAddr) net.HardwareAddr {
	whole := make(net.HardwareAddr, 6)
	copy(whole, mac)
	return whole
}

// Flags of endpoints with a host side, by the kind of the link.
const (
	IntoPeer = objects.EndpointOnHost | objects.EndpointEgress | objects.EndpointPeer
	IntoTap  = objects.EndpointOnHost | objects.EndpointEgress
	IntoTun  = objects.EndpointOnHost | objects.EndpointEgress | objects.EndpointL3
)

// locate finds the attach point for a device in a pod. The device is empty except for its MAC address if the pod has no
// network namespace.
func (d *Device) locate(a Spec, device rtnl.Device) error {
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
func (d *Device) onPeer(a Spec, device rtnl.Device) error {
	o, err := rtnl.In(a.Host).DeviceByIndex(device.PeerIndex)
	if errors.Is(err, os.ErrNotExist) || err == nil && (o.Kind != device.Kind || o.PeerIndex != device.Index) {
		return fmt.Errorf("interface %s: its peer is not in the host's network namespace, %q", a, a.Host.Name())
	}
	if err != nil {
		return err
	}
	d.onHost(a, o)
	if device.Kind == "netkit" {
		d.Point, d.Peer = objects.AttachNetkit, device.Index
	}
	d.Flags = IntoPeer
	return nil
}

// onHost selects a device of the host.
func (d *Device) onHost(a Spec, o rtnl.Device) {
	d.Point, d.On, d.IfIndex, d.NodeMAC = objects.AttachHost, a.Host, o.Index, o.MAC
}

// onNamed selects the host's device with the given name. TUN devices have no MAC address.
func (d *Device) onNamed(a Spec, device rtnl.Device) error {
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
	d.onHost(a, o)
	d.Flags = IntoTap
	if len(o.MAC) == 0 {
		d.Point, d.Flags = objects.AttachTun, IntoTun
	}
	return nil
}

// onParent selects the pod's own device, for kinds without a host's side. The parent is expected in the host's
// namespace.
func (d *Device) onParent(a Spec, device rtnl.Device) error {
	others, err := rtnl.In(a.Host).DevicesOfKind(device.Kind)
	if err != nil {
		return err
	}
	d.Point, d.On, d.IfIndex, d.Segment = objects.AttachPod, a.Namespace, device.Index, device.ParentIndex
	parent, err := rtnl.In(a.Host).DeviceByIndex(device.ParentIndex)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	d.NodeMAC = parent.MAC
	if len(parent.MAC) > 0 {
		d.Parent = parent.Index
	}
	if d.Parent != 0 && device.Kind == "ipvlan" { // whose pods reach the parent itself too, and choose its mode
		d.Entrances, d.Loopback = append(d.Entrances, d.Parent), true
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

// onSegment selects the pod's own device, for pods joined by a switch that the kernel does not know as their parent.
func (d *Device) onSegment(a Spec, device rtnl.Device) error {
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
