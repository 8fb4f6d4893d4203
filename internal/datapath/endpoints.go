// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Endpoints are the pods of a datapath: their addresses, and the programs on their devices.
type Endpoints struct{ o *objects.Objects }

// Get returns the endpoint's row of an address. The error is a *NotFoundError if there is none. It takes no lock.
func (e Endpoints) Get(_ context.Context, ip netip.Addr) (Endpoint, error) {
	value, ok, err := e.o.Endpoints.Get(rows.EncodeAddr(ip))
	if err == nil && !ok {
		err = endpointNotFound(ip)
	}
	if err != nil {
		return Endpoint{}, err
	}
	return decodeEndpoint(rows.EncodeAddr(ip), value), nil
}

// List returns all endpoints, sorted by ID and address. It takes no lock.
func (e Endpoints) List(context.Context) ([]Endpoint, error) { return e.list() }

func (e Endpoints) list() (all []Endpoint, err error) {
	for row, err := range e.o.Endpoints.All() {
		if err != nil {
			return nil, err
		}
		all = append(all, decodeEndpoint(row.Key, row.Value))
	}
	sortEndpoints(all)
	return all, nil
}

func encodeEndpoint(e Endpoint) (objects.Addr, objects.Endpoint) {
	value := objects.Endpoint{Id: e.ID, Segment: e.segment, Netns: e.netns, Owner: uint8(e.Owner), Egress: e.sets.Egress,
		Ingress: e.sets.Ingress}
	value.Path.Ifindex, value.Path.Flags = uint32(e.IfIndex), e.flags
	copy(value.Path.PodMac[:], e.PodMAC)
	copy(value.Path.NodeMac[:], e.NodeMAC)
	return rows.EncodeAddr(e.IP), value
}

func decodeEndpoint(key objects.Addr, value objects.Endpoint) Endpoint {
	return Endpoint{
		ID: value.Id, IP: rows.DecodeAddr(key), Owner: service.Owner(value.Owner),
		Host: value.Path.Flags&objects.EndpointOnHost != 0, IfIndex: int(value.Path.Ifindex),
		PodMAC: bytes.Clone(value.Path.PodMac[:]), NodeMAC: bytes.Clone(value.Path.NodeMac[:]),
		flags: value.Path.Flags, segment: value.Segment, netns: value.Netns,
		sets: policy.Sets{Egress: value.Egress, Ingress: value.Ingress},
	}
}

func endpointNotFound(ip netip.Addr) error {
	return &NotFoundError{What: fmt.Sprintf("endpoint %s", ip)}
}

func anyAttached(o *objects.Objects, hooks []objects.Hook, id uint32) bool {
	return slices.ContainsFunc(objects.Link{ID: uint64(id)}.At(hooks), func(k objects.Link) bool {
		on, err := o.Attached(k)
		return err == nil && on != 0
	})
}

func (e Endpoints) alive(id uint32) bool { return anyAttached(e.o, objects.EndpointHooks(), id) }

// Check returns a *DeviationError unless a device is an endpoint with all its addresses, and has its programs. It takes
// no lock and changes nothing.
func (e Endpoints) Check(_ context.Context, spec EndpointSpec) error {
	t, err := findTarget(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.requireAddress(spec); err != nil {
		return err
	}
	all, err := e.list()
	if err != nil {
		return err
	}
	elsewhere, err := isElsewhere(e.o, t.Host)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, t.is)
	if i < 0 || elsewhere {
		return deviation("endpoint of "+spec.String(), "not found")
	}
	id := all[i].ID
	t.Owner = all[i].Owner
	var found []string
	for _, want := range t.endpoints(id) {
		if !slices.ContainsFunc(all, func(have Endpoint) bool {
			have.sets = policy.Sets{}
			return reflect.DeepEqual(have, want)
		}) {
			found = append(found, fmt.Sprintf("address %s is missing or leads elsewhere", want.IP))
		}
	}
	deviations, err := t.guardDeviations(e.o, id, false)
	if err != nil {
		return err
	}
	found = append(found, deviations...)
	for _, k := range e.o.Missing(t.links(id), uint64(t.IfIndex)) {
		found = append(found, fmt.Sprintf("program %s is not attached", k.Hook.Program))
	}
	return deviation("endpoint of "+spec.String(), found...)
}

// Describe fills in facts that are missing in the rows of endpoints: the device, its kind and link mode, the
// namespace, and whether the source guard is on. It takes no lock.
func (e Endpoints) Describe(all []Endpoint) error {
	if len(all) == 0 {
		return nil
	}
	host, err := hostCookie(e.o)
	if err != nil {
		return err
	}
	needed := map[uint64]bool{host: true}
	for i := range all {
		needed[all[i].netns] = true
		if err := e.describeGuard(&all[i]); err != nil {
			return err
		}
	}
	devices, names := map[uint64][]rtnl.Device{}, map[uint64]string{} // by namespace
	err = withNamespaces(func(by map[uint64]*netns.Namespace) (err error) {
		for cookie, ns := range by {
			if !needed[cookie] {
				continue
			}
			names[cookie] = ns.Name()
			if devices[cookie], err = rtnl.In(ns).Devices(); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range all {
		each, at := &all[i], host
		if each.Netns = cmp.Or(each.Netns, names[each.netns]); !each.Host {
			at = each.netns
		}
		describe(each, devices[at], devices[each.netns])
	}
	return err
}

func (e Endpoints) describeGuard(each *Endpoint) error {
	sender, known, err := e.o.Senders.Get(senderKey(each.Host, each.netns, each.IfIndex))
	if err != nil {
		return err
	}
	each.Guarded = !known || sender.Flags&objects.SenderUnguarded == 0 // it drops all packets of a device without a row
	each.Allowed, each.LinkLocal = allowedBy(sender), netip.Addr{}
	if local := rows.DecodeAddr(sender.LinkLocal); local.IsLinkLocalUnicast() {
		each.LinkLocal = local
	}
	return nil
}

func allowedBy(sender objects.Sender) (allowed []netip.Prefix) {
	for _, p := range sender.Prefix[:sender.Prefixes] {
		allowed = append(allowed, rows.DecodePrefix(p.Addr, p.Mask))
	}
	return allowed
}

// describe fills in the attributes of the endpoint's device, and the counters of the pod's: packets from
// bpf_redirect_peer() are counted only at the pod's end.
func describe(e *Endpoint, devices, inPod []rtnl.Device) {
	byIndex := func(devices []rtnl.Device, index int) (found rtnl.Device) {
		if i := slices.IndexFunc(devices, func(d rtnl.Device) bool { return d.Index == index }); i >= 0 {
			found = devices[i]
		}
		return found
	}
	d := byIndex(devices, e.IfIndex)
	if d.Index == 0 {
		return
	}
	e.Kind, e.Device, e.Layer3, e.Ethernet = d.Kind, d.Name, d.Layer3, len(d.MAC) > 0
	e.Master = byIndex(devices, d.MasterIndex).Kind
	e.Sent, e.Received = Traffic{Packets: d.TxPackets, Bytes: d.TxBytes}, Traffic{Packets: d.RxPackets, Bytes: d.RxBytes}
	if !e.Host {
		return
	}
	e.Sent, e.Received = e.Received, e.Sent
	if peer := byIndex(inPod, d.PeerIndex); peer.Index != 0 && peer.PeerIndex == d.Index {
		e.Received = Traffic{Packets: peer.RxPackets, Bytes: peer.RxBytes}
	}
}

// Endpoints returns the handle of the endpoints.
func (d *Datapath) Endpoints() Endpoints { return Endpoints{d.objects} }

func policiesOf(o *objects.Objects) policies.Policies {
	return policies.Policies{Objects: o, Node: func() (all []netip.Addr, err error) {
		host, err := hostCookie(o)
		if err != nil || host == 0 {
			return nil, err
		}
		err = onHost(host, func(ns *netns.Namespace) error {
			if ns != nil {
				all, err = rtnl.In(ns).Every()
			}
			return err
		})
		return all, err
	}}
}

// Delete removes all addresses of the endpoint with the ID, and its programs; its connections end. The device may be
// gone. If the endpoint is missing, the error is a *NotFoundError.
func (e Endpoints) Delete(ctx context.Context, id uint32) error {
	return e.deleteFirst(ctx, &NotFoundError{What: fmt.Sprintf("endpoint %d", id)},
		func(e Endpoint) bool { return e.ID == id })
}

// DeleteIP removes the endpoint that has the address, with its other addresses, as Delete does.
func (e Endpoints) DeleteIP(ctx context.Context, ip netip.Addr) error {
	return e.deleteFirst(ctx, endpointNotFound(ip), func(e Endpoint) bool { return e.IP == ip.Unmap() })
}

// DeletePod removes the endpoint in the network namespace with the cookie that has one of the addresses, as Delete
// does. Another pod's stays.
func (e Endpoints) DeletePod(ctx context.Context, cookie uint64, addresses []netip.Addr) error {
	return e.deleteFirst(ctx, &NotFoundError{What: fmt.Sprintf("endpoint %v", addresses)},
		func(e Endpoint) bool { return e.netns == cookie && slices.Contains(addresses, e.IP) })
}

// DeleteDevice removes the endpoint of a device that exists, as Delete does.
func (e Endpoints) DeleteDevice(ctx context.Context, spec EndpointSpec) error {
	t, err := findTarget(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	elsewhere, err := isElsewhere(e.o, t.Host)
	if err != nil {
		return err
	}
	return e.deleteFirst(ctx, &NotFoundError{What: fmt.Sprintf("endpoint of %s", spec)},
		func(e Endpoint) bool { return (!elsewhere || t.Point.OnPod()) && t.is(e) }) // whose index is not the host's
}

func (e Endpoints) deleteFirst(ctx context.Context, none error, match func(Endpoint) bool) error {
	return e.o.WithLinks(ctx, func() error {
		all, err := e.list()
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, match); i >= 0 {
			return e.remove(ctx, all[i].ID)
		}
		// The process that deleted it may have died before it was done.
		return errors.Join(none, sweepRemains(ctx, e.o))
	})
}

// Sweep removes endpoints whose device is gone, except in network namespaces whose cookie keep accepts, and killed
// processes' remains of deleted endpoints.
func (e Endpoints) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	return e.o.WithLinks(ctx, func() error {
		all, err := e.list()
		if err != nil {
			return err
		}
		var gone []uint32
		for _, each := range all {
			if !keep(each.netns) && !e.alive(each.ID) {
				gone = append(gone, each.ID)
			}
		}
		return errors.Join(e.remove(ctx, gone...), sweepRemains(ctx, e.o))
	})
}

// remove removes the endpoints with the ids: first their addresses, so that no other pod's program delivers to them.
// Their connections are void from then on, and go when others need the room (ct_check in bpf/mustang/ct.h). The caller
// has the lock of the links.
func (e Endpoints) remove(ctx context.Context, ids ...uint32) error {
	if ids = slices.Compact(ids); len(ids) == 0 {
		return nil
	}
	err := e.o.WithLock(ctx, func() error {
		return policiesOf(e.o).Forget(ids, func() error { return e.removeRows(ids) })
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		err = errors.Join(err, e.o.DetachAll(objects.Link{ID: uint64(id)}.At(objects.EndpointHooks())))
	}
	return errors.Join(err, detachIdle(e.o))
}

func (e Endpoints) removeRows(ids []uint32) error {
	all, err := e.list()
	if err != nil {
		return err
	}
	gone, left := map[uint64]bool{}, map[uint64]bool{} // network namespaces
	for _, each := range all {
		if !slices.Contains(ids, each.ID) {
			left[each.netns] = true
			continue
		}
		gone[each.netns] = true
		key := senderKey(each.Host, each.netns, each.IfIndex)
		sender, ok, err := e.o.Senders.Get(key)
		if err = errors.Join(err, e.o.Endpoints.Delete(rows.EncodeAddr(each.IP))); err != nil {
			return err
		}
		if ok && sender.Endpoint == each.ID {
			if err := deleteSender(e.o, key); err != nil {
				return err
			}
		}
	}
	if err := e.o.NodeState.Invalidate(); err != nil {
		return err
	}
	for cookie := range gone {
		err = errors.Join(err, disableSockets(e.o, cookie, left))
	}
	return err
}
