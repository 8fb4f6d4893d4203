// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"mustang/internal/nl"
)

// Attach names the device of a pod.
type Attach struct {
	// Namespace is the pod's. It is nil for a pod that has none on this machine, like a VM: HostIfName, Addresses and MAC
	// then say what there is to know.
	Namespace *nl.Namespace
	// IfName is the device's name in the pod.
	IfName string
	// Host is the namespace that the link's other side is in; nil is that of the calling thread.
	Host *nl.Namespace
	// HostIfName is the device in Host where the programs go, for links whose two ends the kernel does not know as peers:
	// tap and tun. Empty otherwise.
	HostIfName string
	// Segment is the name of a device in Host, such as a bridge of Open vSwitch, if the programs are to go on the pod's own
	// device, and pods of the same segment reach each other by MAC. Empty for all that is found out from the device's
	// kind.
	Segment string
	// Shaped is whether what is delivered into the pod is to pass the queue of the host's device, so that a qdisc there
	// limits it: packets then take the device itself (bpf_redirect) and not the shorter way past it. It is an error for
	// a pod whose link has no host's side.
	Shaped bool
	// Addresses and MAC are those of a pod without a Namespace. They count for no other.
	Addresses []netip.Addr
	MAC       net.HardwareAddr
}

// String names the device for messages.
func (a Attach) String() string {
	if a.Namespace == nil {
		return fmt.Sprintf("behind %q", a.HostIfName)
	}
	return fmt.Sprintf("%q in network namespace %q", a.IfName, a.Namespace.Name())
}

// Check returns an error if the device cannot be an endpoint: it, its address or its other side is missing, or its kind
// has no place for programs. It changes nothing.
func (a Attach) Check() error {
	t, err := a.find()
	if err != nil {
		return err
	}
	defer t.close()
	return t.addressed(a)
}

// target is a pod's device and the place where its programs belong.
type target struct {
	side      side
	on        *nl.Namespace // where ifindex is
	ifindex   int
	podMAC    net.HardwareAddr
	nodeMAC   net.HardwareAddr
	segment   int
	netns     uint64
	flags     mustangEndpointFlag
	addresses []netip.Addr
	opened    *nl.Namespace // to be closed
}

func (t *target) close() {
	if t.opened != nil {
		_ = t.opened.Close()
	}
}

// is says whether an endpoint is on this device. A cookie is never used again, and an index not in one namespace.
func (t *target) is(e Endpoint) bool {
	return e.Host == (t.side != podSide) && e.IfIndex == t.ifindex && e.netns == t.netns
}

// addressed is an error if no other pod could send to the device.
func (t *target) addressed(a Attach) error {
	if len(t.addresses) == 0 {
		return fmt.Errorf("interface %s has no address that other pods could send to", a)
	}
	return nil
}

// find looks up the device and what belongs to it.
func (a Attach) find() (_ *target, err error) {
	if a.Namespace == nil && a.HostIfName == "" {
		return nil, errors.New("no network namespace was given for the pod")
	}
	t := &target{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if a.Host == nil {
		if a.Host, err = nl.CurrentNamespace(); err != nil {
			return nil, err
		}
		t.opened = a.Host
	}
	device, err := t.inPod(a)
	if err != nil {
		return nil, err
	}
	if err := t.locate(a, device); err != nil {
		return nil, err
	}
	if a.Shaped {
		if t.side == podSide {
			return nil, fmt.Errorf("interface %s has no host's side, whose queue could shape what it gets", a)
		}
		t.flags &^= mustangEndpointFlagENDPOINT_PEER
	}
	t.podMAC, t.nodeMAC = wholeMAC(t.podMAC), wholeMAC(t.nodeMAC)
	return t, nil
}

// inPod reads what there is in the pod.
func (t *target) inPod(a Attach) (device nl.Device, err error) {
	if a.Namespace == nil {
		t.podMAC = a.MAC
		t.addresses = reachable(a.Addresses)
		return nl.Device{MAC: a.MAC}, nil
	}
	if t.netns, err = a.Namespace.Cookie(); err != nil {
		return device, err
	}
	if device, err = a.Namespace.Device(a.IfName); err != nil {
		return device, err
	}
	t.podMAC = device.MAC
	addresses := make([]netip.Addr, 0, len(device.Addrs))
	for _, p := range device.Addrs {
		addresses = append(addresses, p.Addr())
	}
	t.addresses = reachable(addresses)
	return device, nil
}

// reachable are those addresses that other pods can send to.
func reachable(all []netip.Addr) []netip.Addr {
	var addresses []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); a.IsGlobalUnicast() {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// wholeMAC is zero for a device that has none.
func wholeMAC(mac net.HardwareAddr) net.HardwareAddr {
	whole := make(net.HardwareAddr, 6)
	copy(whole, mac)
	return whole
}

// endpoints are the rows that the device should have.
func (t *target) endpoints(id uint32) []Endpoint {
	rows := make([]Endpoint, 0, len(t.addresses))
	for _, ip := range t.addresses {
		rows = append(rows, Endpoint{
			ID: id, IP: ip, Host: t.side != podSide, IfIndex: t.ifindex, PodMAC: t.podMAC, NodeMAC: t.nodeMAC,
			flags: t.flags, segment: uint32(t.segment), netns: t.netns,
		})
	}
	sortEndpoints(rows)
	return rows
}
