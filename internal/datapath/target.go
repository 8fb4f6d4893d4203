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
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// EndpointSpec names the device of a pod.
type EndpointSpec struct {
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
	// Segment is a device in Host, such as a bridge of Open vSwitch, that joins pods of which each gets the programs on its
	// own device, and which reach each other by MAC address. Empty if the kind of the device tells all that.
	Segment string
	// Shaped delivers packets into the pod through the queue of the host's device (bpf_redirect) instead of past it, so that
	// a qdisc there limits their rate. It is an error if the link has no host's side.
	Shaped bool
	// Addresses are the pod's. If there are none, they are those of its device, which whoever has rights in the pod can
	// choose.
	Addresses []netip.Addr
	// MAC is that of a pod without a Namespace, and ignored for others.
	MAC net.HardwareAddr
}

// String names the device for messages.
func (a EndpointSpec) String() string {
	if a.Namespace == nil {
		return fmt.Sprintf("behind %q", a.HostIfName)
	}
	return fmt.Sprintf("%q in network namespace %q", a.IfName, a.Namespace.Name())
}

// Check returns an error if the device cannot be an endpoint: the device, its address or its peer is missing, or its kind
// is not supported. It changes nothing.
func (a EndpointSpec) Check() error {
	t, err := a.find()
	if err != nil {
		return err
	}
	defer t.close()
	return t.requireAddress(a)
}

// target is a pod's device and the attach point of its programs.
type target struct {
	point     objects.AttachPoint
	owner     service.Owner
	host      uint64                     // cookie of the host's network namespace
	hostHas   func() (netip.Addr, error) // the first address that the host has too
	on        *netns.Namespace           // where ifindex is
	ifindex   int
	podMAC    net.HardwareAddr
	nodeMAC   net.HardwareAddr
	segment   int
	netns     uint64
	flags     uint32
	addresses []netip.Addr
	opened    *netns.Namespace // to be closed
}

func (t *target) close() {
	if t.opened != nil {
		_ = t.opened.Close()
	}
}

// is reports whether an endpoint is on this device. The kernel reuses no cookie of a namespace.
func (t *target) is(e Endpoint) bool {
	return e.Host == (t.point != objects.AttachPod) && e.IfIndex == t.ifindex && e.netns == t.netns
}

// displaces reports whether an endpoint was on a device of the host that is gone, and whose index this one has now: the
// programs would deliver the endpoint's packets to it.
func (t *target) displaces(e Endpoint) bool {
	return e.Host && t.point != objects.AttachPod && e.IfIndex == t.ifindex && !t.is(e)
}

// requireAddress returns an error if no other pod could send to the device.
func (t *target) requireAddress(a EndpointSpec) error {
	if len(t.addresses) == 0 {
		return fmt.Errorf("interface %s has no address that other pods could send to", a)
	}
	return nil
}

// find finds the device and the attach point.
func (a EndpointSpec) find() (_ *target, err error) {
	if a.Namespace == nil && a.HostIfName == "" {
		return nil, errors.New("no network namespace for the pod")
	}
	t := &target{owner: a.Owner}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if a.Host == nil {
		if a.Host, err = netns.Current(); err != nil {
			return nil, err
		}
		t.opened = a.Host
	}
	if t.host, err = a.Host.Cookie(); err != nil {
		return nil, err
	}
	t.hostHas = func() (netip.Addr, error) { return rtnl.In(a.Host).FirstLocal(t.addresses) }
	device, err := t.inPod(a)
	if err != nil {
		return nil, err
	}
	if err := t.locate(a, device); err != nil {
		return nil, err
	}
	if a.Shaped {
		if t.point == objects.AttachPod {
			return nil, fmt.Errorf("interface %s has no device on the host whose queue could limit the rate", a)
		}
		t.flags &^= objects.EndpointPeer
	}
	t.podMAC, t.nodeMAC = wholeMAC(t.podMAC), wholeMAC(t.nodeMAC)
	return t, nil
}

// inPod reads the pod's device and addresses.
func (t *target) inPod(a EndpointSpec) (device rtnl.Device, err error) {
	if a.Namespace == nil {
		t.podMAC = a.MAC
		t.addresses = reachable(a.Addresses)
		return rtnl.Device{MAC: a.MAC}, nil
	}
	if t.netns, err = a.Namespace.Cookie(); err != nil {
		return device, err
	}
	if device, err = rtnl.In(a.Namespace).Device(a.IfName); err != nil {
		return device, err
	}
	t.podMAC = device.MAC
	addresses := a.Addresses
	if len(addresses) == 0 {
		for _, p := range device.Addrs {
			addresses = append(addresses, p.Addr())
		}
	}
	t.addresses = reachable(addresses)
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

// links returns the links that the endpoint of the device has.
func (t *target) links(id uint32) []objects.Link {
	var links []objects.Link
	for _, h := range t.point.Hooks() {
		links = append(links, objects.Link{Hook: h, ID: uint64(id)})
	}
	return links
}

// endpoints returns the rows that the device should have.
func (t *target) endpoints(id uint32) []Endpoint {
	rows := make([]Endpoint, 0, len(t.addresses))
	for _, ip := range t.addresses {
		rows = append(rows, Endpoint{
			ID: id, IP: ip, Host: t.point != objects.AttachPod, IfIndex: t.ifindex, PodMAC: t.podMAC, NodeMAC: t.nodeMAC,
			Owner: t.owner, flags: t.flags, segment: uint32(t.segment), netns: t.netns,
		})
	}
	sortEndpoints(rows)
	return rows
}

// Flags of endpoints with a host side, by the kind of the link.
const (
	intoPeer = objects.EndpointEgress | objects.EndpointPeer
	intoTap  = objects.EndpointEgress
	intoTun  = objects.EndpointEgress | objects.EndpointL3
)

// locate finds the attach point for a device in a pod. The device is empty except for its MAC address if the pod has no
// network namespace.
func (t *target) locate(a EndpointSpec, device rtnl.Device) error {
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
		return fmt.Errorf("interface %s is of kind \"tun\": the host's device of the link must be given", a)
	default:
		return fmt.Errorf("interface %s is of kind %q: only veth, netkit, macvlan, ipvlan and tun are supported, or a "+
			"segment must be given", a, device.Kind)
	}
}

// onPeer finds the peer of a veth or netkit, whose MAC address is the node's for the pod.
func (t *target) onPeer(a EndpointSpec, device rtnl.Device) error {
	o, err := rtnl.In(a.Host).DeviceByIndex(device.PeerIndex)
	if errors.Is(err, os.ErrNotExist) || err == nil && (o.Kind != device.Kind || o.PeerIndex != device.Index) {
		return fmt.Errorf("interface %s: its peer is not in the host's network namespace, %q", a, a.Host.Name())
	}
	if err != nil {
		return err
	}
	t.onHost(a, o)
	if device.Kind == "netkit" {
		t.point = objects.AttachNetkit
	}
	t.flags = intoPeer
	return nil
}

// onHost selects a device of the host.
func (t *target) onHost(a EndpointSpec, o rtnl.Device) {
	t.point, t.on, t.ifindex, t.nodeMAC = objects.AttachHost, a.Host, o.Index, o.MAC
}

// onNamed selects the host's device with the given name. TUN devices have no MAC address.
func (t *target) onNamed(a EndpointSpec, device rtnl.Device) error {
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
	t.onHost(a, o)
	t.flags = intoTap
	if len(o.MAC) == 0 {
		t.point, t.flags = objects.AttachTun, intoTun
	}
	return nil
}

// onParent selects the pod's own device, for kinds without a host's side. The parent is expected in the host's namespace.
func (t *target) onParent(a EndpointSpec, device rtnl.Device) error {
	others, err := rtnl.In(a.Host).DevicesOfKind(device.Kind)
	if err != nil {
		return err
	}
	t.point, t.on, t.ifindex, t.segment = objects.AttachPod, a.Namespace, device.Index, device.ParentIndex
	for _, o := range others {
		if o.ParentIndex == device.ParentIndex {
			t.nodeMAC = o.MAC
			return nil
		}
	}
	parent, err := rtnl.In(a.Host).DeviceByIndex(device.ParentIndex)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	t.nodeMAC = parent.MAC
	return nil
}

// onSegment selects the pod's own device, for pods joined by a switch that the kernel does not know as their parent.
func (t *target) onSegment(a EndpointSpec, device rtnl.Device) error {
	if a.Namespace == nil {
		return fmt.Errorf("segment %q: no network namespace for the pod", a.Segment)
	}
	if len(device.MAC) == 0 || device.Kind == "loopback" {
		return fmt.Errorf("interface %s is of kind %q and has no MAC address, which pods in segment %q need", a,
			device.Kind, a.Segment)
	}
	o, err := rtnl.In(a.Host).Device(a.Segment)
	if err != nil {
		return err
	}
	t.point, t.on, t.ifindex, t.segment, t.nodeMAC = objects.AttachPod, a.Namespace, device.Index, o.Index, o.MAC
	return nil
}
