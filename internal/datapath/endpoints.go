// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Endpoint is one address of a pod, as the table has it.
type Endpoint struct {
	// ID is shared by all addresses of one device.
	ID uint32
	IP netip.Addr
	// Host is whether the programs sit on the host's side of the pod's link, whose index IfIndex then is. Otherwise
	// they sit on the pod's own device, and IfIndex is its index in the pod's namespace.
	Host    bool
	IfIndex int
	// PodMAC is the MAC of the device in the pod; zero if it has none, like TUN.
	PodMAC net.HardwareAddr
	// NodeMAC is the node's MAC on the pod's link: that of the host's side; for a macvlan or ipvlan that of the host's
	// own on the same parent, or else of the parent; for a segment that of its device. Zero if there is none of these.
	NodeMAC net.HardwareAddr

	flags   mustangEndpointFlag // how packets get in from the host's side
	segment uint32              // which other pods without a host side are reached by MAC; 0 is none
	netns   uint64              // the cookie of the pod's namespace; 0 if it has none
}

// Endpoints returns all endpoints, sorted by id and address.
func (d *Datapath) Endpoints() ([]Endpoint, error) {
	unlock, err := d.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return d.endpoints()
}

// endpoints is Endpoints for a caller that has the lock, without which rows that go would end the iteration.
func (d *Datapath) endpoints() ([]Endpoint, error) {
	var (
		all   []Endpoint
		key   mustangAddr
		value mustangEndpoint
	)
	entries := d.maps.Endpoints.Iterate()
	for entries.Next(&key, &value) {
		all = append(all, decodeEndpoint(key, value))
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	sortEndpoints(all)
	return all, nil
}

// DeleteEndpoint removes all addresses of the endpoint with the id, its programs, and its connections. The error is a
// *NotFoundError if there is none. The device need not be there any more.
func (d *Datapath) DeleteEndpoint(id uint32) error {
	return d.deleteEndpoint(&NotFoundError{What: fmt.Sprintf("endpoint %d", id)},
		func(e Endpoint) bool { return e.ID == id })
}

// DeleteEndpointIP removes the endpoint that has the address, with its other addresses, as DeleteEndpoint does.
func (d *Datapath) DeleteEndpointIP(ip netip.Addr) error {
	return d.deleteEndpoint(endpointNotFound(ip), func(e Endpoint) bool { return e.IP == ip.Unmap() })
}

// DeleteEndpointDevice removes the endpoint of a device that still exists, as DeleteEndpoint does.
func (d *Datapath) DeleteEndpointDevice(a Attach) error {
	t, err := a.find()
	if err != nil {
		return err
	}
	defer t.close()
	return d.deleteEndpoint(&NotFoundError{What: fmt.Sprintf("endpoint of %s", a)}, t.is)
}

// deleteEndpoint removes the first endpoint that one of the addresses that match belongs to.
func (d *Datapath) deleteEndpoint(none error, match func(Endpoint) bool) error {
	unlock, err := d.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	all, err := d.endpoints()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, match)
	if i < 0 {
		return none
	}
	return d.drop(all, all[i].ID)
}

// drop removes an endpoint: first its addresses, so that no other pod's program delivers to it.
func (d *Datapath) drop(all []Endpoint, id uint32) error {
	gone := make(map[netip.Addr]bool)
	var netns uint64
	for _, e := range all {
		if e.ID != id {
			continue
		}
		gone[e.IP], netns = true, e.netns
		if err := remove(d.maps.Endpoints, mustangMapEndpoints, encodeAddr(e.IP)); err != nil {
			return err
		}
	}
	if err := errors.Join(d.dismiss(netns), d.detach(id)); err != nil {
		return err
	}
	return d.flushAddresses(gone)
}

// flushAddresses forgets the connections of pods that are gone or have changed: another pod may get the address, and
// connections know the way into their pods.
func (d *Datapath) flushAddresses(gone map[netip.Addr]bool) error {
	// A program that has seen the pod still may be about to store a connection to it.
	waitForPrograms()
	return d.flush(func(from, to mustangTuple, _ mustangConnection) bool {
		return gone[decodeAddr(from.Saddr)] || gone[decodeAddr(to.Daddr)]
	})
}

func sortEndpoints(all []Endpoint) {
	slices.SortFunc(all, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.IP.Compare(b.IP)) })
}

func encodeEndpoint(e Endpoint) (mustangAddr, mustangEndpoint) {
	value := mustangEndpoint{Id: e.ID, Segment: e.segment, Netns: e.netns,
		Entrance: mustangEntrance{Ifindex: uint32(e.IfIndex), Flags: uint32(e.flags)}}
	copy(value.Entrance.PodMac[:], e.PodMAC)
	copy(value.Entrance.NodeMac[:], e.NodeMAC)
	return encodeAddr(e.IP), value
}

func decodeEndpoint(key mustangAddr, value mustangEndpoint) Endpoint {
	flags := mustangEndpointFlag(value.Entrance.Flags)
	return Endpoint{
		ID:      value.Id,
		IP:      decodeAddr(key),
		Host:    flags&mustangEndpointFlagENDPOINT_EGRESS != 0,
		IfIndex: int(value.Entrance.Ifindex),
		PodMAC:  bytes.Clone(value.Entrance.PodMac[:]),
		NodeMAC: bytes.Clone(value.Entrance.NodeMac[:]),
		flags:   flags,
		segment: value.Segment,
		netns:   value.Netns,
	}
}
