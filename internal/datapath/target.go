// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"mustang/internal/nl"
)

// Attach names the device of a pod.
type Attach struct {
	// Namespace is the pod's.
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
}

// String names the device for messages.
func (a Attach) String() string {
	return fmt.Sprintf("%q in network namespace %q", a.IfName, a.Namespace.Name())
}

// target is a pod's device and the place where its programs belong.
type target struct {
	side      side
	on        *nl.Namespace // where ifindex is
	ifindex   int
	podMAC    net.HardwareAddr
	nodeMAC   net.HardwareAddr
	segment   int
	addresses []netip.Addr
	opened    *nl.Namespace // to be closed
}

func (t *target) close() {
	if t.opened != nil {
		_ = t.opened.Close()
	}
}

// is says whether an endpoint is on this device. MACs are random, so that another device with the same index, in another
// namespace or at another time, is told apart.
func (t *target) is(e Endpoint) bool {
	return e.Host == (t.side == hostSide) && e.IfIndex == t.ifindex && bytes.Equal(e.PodMAC, t.podMAC)
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

// addressed is an error if no other pod could send to the device.
func (t *target) addressed(a Attach) error {
	if len(t.addresses) == 0 {
		return fmt.Errorf("interface %s has no address that other pods could send to", a)
	}
	return nil
}

// find looks up the device and what belongs to it.
func (a Attach) find() (_ *target, err error) {
	if a.Namespace == nil {
		return nil, errors.New("no network namespace was given for the pod")
	}
	t := &target{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	host := a.Host
	if host == nil {
		if host, err = nl.CurrentNamespace(); err != nil {
			return nil, err
		}
		t.opened = host
	}
	device, err := a.Namespace.Device(a.IfName)
	if err != nil {
		return nil, err
	}
	others, err := host.Devices()
	if err != nil {
		return nil, err
	}
	t.podMAC = device.MAC
	t.addresses = endpointAddresses(device.Addrs)
	switch device.Kind {
	case "veth":
		err = t.onHost(a, host, device, others)
	case "macvlan":
		t.onPod(a, device, others)
	default:
		err = fmt.Errorf("interface %s is of kind %q, and endpoints are of kind veth or macvlan", a, device.Kind)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// endpointAddresses are those that other pods can send to.
func endpointAddresses(prefixes []netip.Prefix) []netip.Addr {
	var addresses []netip.Addr
	for _, p := range prefixes {
		if a := p.Addr().Unmap(); a.IsGlobalUnicast() {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// onHost finds the other end of a veth, whose MAC the pod sees as the node's.
func (t *target) onHost(a Attach, host *nl.Namespace, device nl.Device, others []nl.Device) error {
	i := slices.IndexFunc(others, func(o nl.Device) bool {
		return o.Index == device.PeerIndex && o.Kind == "veth" && o.PeerIndex == device.Index
	})
	if i < 0 {
		return fmt.Errorf("interface %s: its peer is not in network namespace %q", a, host.Name())
	}
	t.side, t.on, t.ifindex, t.nodeMAC = hostSide, host, others[i].Index, others[i].MAC
	return nil
}

// onPod is for devices that have no other side. Parents are taken to be in the host's namespace, as they are where pods
// are made.
func (t *target) onPod(a Attach, device nl.Device, others []nl.Device) {
	t.side, t.on, t.ifindex, t.segment = podSide, a.Namespace, device.Index, device.ParentIndex
	t.nodeMAC = make(net.HardwareAddr, 6)
	for _, o := range others {
		switch {
		case o.Kind == device.Kind && o.ParentIndex == device.ParentIndex:
			t.nodeMAC = o.MAC
			return
		case o.Index == device.ParentIndex:
			t.nodeMAC = o.MAC
		}
	}
}

// endpoints are the rows that the device should have.
func (t *target) endpoints(id uint32) []Endpoint {
	rows := make([]Endpoint, 0, len(t.addresses))
	for _, ip := range t.addresses {
		rows = append(rows, Endpoint{
			ID: id, IP: ip, Host: t.side == hostSide, IfIndex: t.ifindex,
			PodMAC: t.podMAC, NodeMAC: t.nodeMAC, segment: uint32(t.segment),
		})
	}
	sortEndpoints(rows)
	return rows
}
