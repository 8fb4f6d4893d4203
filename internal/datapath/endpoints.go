// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
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

// endpoints is Endpoints for a caller that has the lock.
func (d *Datapath) endpoints() ([]Endpoint, error) {
	var all []Endpoint
	for row, err := range batches[mustangAddr, mustangEndpoint](d.maps.Endpoints, mustangMapEndpoints, 512) {
		if err != nil {
			return nil, err
		}
		all = append(all, decodeEndpoint(row.key, row.value))
	}
	sortEndpoints(all)
	return all, nil
}

// concerned returns the endpoints that match by one of their addresses, and those that share a namespace with one. MACs
// are nothing to match by. The caller has the lock.
func (d *Datapath) concerned(match func(Endpoint) bool) ([]Endpoint, error) {
	var rows []row[mustangAddr, mustangEndpoint]
	ids, namespaces := make(map[uint32]bool), make(map[uint64]bool)
	for row, err := range batches[mustangAddr, mustangEndpoint](d.maps.Endpoints, mustangMapEndpoints, 512) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		if match(decodePlace(row.key, row.value)) {
			ids[row.value.Id], namespaces[row.value.Netns] = true, true
		}
	}
	delete(namespaces, 0)
	var found []Endpoint
	for _, row := range rows {
		if ids[row.value.Id] || namespaces[row.value.Netns] {
			found = append(found, decodeEndpoint(row.key, row.value))
		}
	}
	sortEndpoints(found)
	return found, nil
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
	all, err := d.concerned(match)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, match)
	if i < 0 {
		return none
	}
	return d.drop(all, all[i].ID)
}

// drop removes an endpoint: first its addresses, so that no other pod's program delivers to it. It waits for no program:
// one that has seen the pod still, and stores a connection after this has looked for them, finds the pod gone and takes
// the connection back (still_wanted in bpf/mustang/connect.h).
func (d *Datapath) drop(all []Endpoint, id uint32) error {
	var gone []netip.Addr
	var left []Endpoint
	var netns uint64
	for _, e := range all {
		if e.ID != id {
			left = append(left, e)
			continue
		}
		gone, netns = append(gone, e.IP), e.netns
		if err := remove(d.maps.Endpoints, mustangMapEndpoints, encodeAddr(e.IP)); err != nil {
			return err
		}
	}
	return errors.Join(d.dismiss(netns, left), d.detach(id), d.disconnect(gone))
}

// disconnect forgets the connections of addresses that no pod has any more: another pod may get the address, and
// connections know the way into their pods. Most pods that go have none.
func (d *Datapath) disconnect(gone []netip.Addr) error {
	known := make(map[netip.Addr]bool)
	for _, ip := range gone {
		var one uint32
		err := d.maps.Connected.Lookup(encodeAddr(ip), &one)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("read whether %s is connected: %w", ip, err)
		}
		known[ip] = err == nil
	}
	maps.DeleteFunc(known, func(_ netip.Addr, is bool) bool { return !is })
	if len(known) == 0 {
		return nil
	}
	if err := d.flushAddresses(known); err != nil {
		return err
	}
	// Last, so that who has the address next finds what a process that dies here leaves.
	for ip := range known {
		if err := remove(d.maps.Connected, mustangMapConnected, encodeAddr(ip)); err != nil {
			return err
		}
	}
	return nil
}

// flushAddresses forgets the connections that know one of the addresses.
func (d *Datapath) flushAddresses(gone map[netip.Addr]bool) error {
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
	e := decodePlace(key, value)
	e.PodMAC, e.NodeMAC = bytes.Clone(value.Entrance.PodMac[:]), bytes.Clone(value.Entrance.NodeMac[:])
	return e
}

// decodePlace is decodeEndpoint without the MACs.
func decodePlace(key mustangAddr, value mustangEndpoint) Endpoint {
	flags := mustangEndpointFlag(value.Entrance.Flags)
	return Endpoint{
		ID:      value.Id,
		IP:      decodeAddr(key),
		Host:    flags&mustangEndpointFlagENDPOINT_EGRESS != 0,
		IfIndex: int(value.Entrance.Ifindex),
		flags:   flags,
		segment: value.Segment,
		netns:   value.Netns,
	}
}
