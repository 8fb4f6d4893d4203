// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/guard"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// Delete removes all addresses of the endpoint with the ID, and its programs; its connections end. The device may be gone. The
// error is a *NotFoundError if there is no such endpoint.
func (e Endpoints) Delete(ctx context.Context, id uint32) error {
	return e.deleteFirst(ctx, &NotFoundError{What: fmt.Sprintf("endpoint %d", id)},
		func(e Endpoint) bool { return e.ID == id })
}

// DeleteIP removes the endpoint that has the address, with its other addresses, as Delete does.
func (e Endpoints) DeleteIP(ctx context.Context, ip netip.Addr) error {
	return e.deleteFirst(ctx, endpointNotFound(ip), func(e Endpoint) bool { return e.IP == ip.Unmap() })
}

// DeletePod removes the endpoint in the network namespace with the cookie that has one of the addresses, as Delete does. Another pod's stays.
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
	if err := e.o.OpenTables(); err != nil {
		return err
	}
	elsewhere, err := isElsewhere(e.o, t.Host)
	if err != nil {
		return err
	}
	return e.deleteFirst(ctx, &NotFoundError{What: fmt.Sprintf("endpoint of %s", spec)},
		func(e Endpoint) bool { return (!elsewhere || t.Point.OnPod()) && t.is(e) }) // whose index is not the host's
}

// deleteFirst removes the endpoint of the first address that matches.
func (e Endpoints) deleteFirst(ctx context.Context, none error, match func(Endpoint) bool) error {
	links, err := lockLinks(ctx, e.o)
	if err != nil {
		return err
	}
	defer links.Unlock()
	all, err := e.matching(match)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, match)
	if i < 0 {
		// The process that deleted it may have died before it was done.
		return errors.Join(none, e.sweepRemains(ctx))
	}
	return e.remove(ctx, all, all[i:i+1])
}

// Sweep removes endpoints whose device is gone, except those in network namespaces whose cookie keep accepts, and what
// killed processes left of deleted ones.
func (e Endpoints) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	links, err := lockLinks(ctx, e.o)
	if err != nil {
		return err
	}
	defer links.Unlock()
	all, err := e.list()
	if err != nil {
		return err
	}
	var gone []Endpoint
	for _, each := range all {
		if hasID(gone, each.ID) || !keep(each.netns) && !e.alive(each.ID) {
			gone = append(gone, each)
		}
	}
	return errors.Join(e.remove(ctx, all, gone), e.sweepRemains(ctx))
}

// sweepRemains detaches the programs of endpoints that have no row, and ends the socket translation of their network
// namespaces: a process that deleted them died. The caller has the lock of the links.
func (e Endpoints) sweepRemains(ctx context.Context) error {
	ids, namespaces := make(map[uint64]bool), make(map[uint64]bool)
	for row, err := range e.o.Endpoints.All() {
		if err != nil {
			return err
		}
		ids[uint64(row.Value.Id)], namespaces[row.Value.Netns] = true, true
	}
	links, err := e.o.Links()
	if err != nil {
		return err
	}
	hooks := objects.EndpointHooks()
	for _, k := range links {
		if slices.Contains(hooks, k.Hook) && !ids[k.ID] {
			err = errors.Join(err, e.o.Detach(k))
		}
	}
	unknown, senderErr := guard.Strangers(e.o, ids)
	err = errors.Join(err, senderErr)
	for _, key := range unknown {
		err = errors.Join(err, e.o.WithTables(ctx, func() error { return guard.Delete(e.o, key) }))
	}
	flags, flagsErr := namespaceFlags(e.o)
	err = errors.Join(err, flagsErr)
	for cookie, f := range flags {
		if f&objects.NamespacePod != 0 && !namespaces[cookie] {
			err = errors.Join(err, e.o.WithTables(ctx, func() error { return disableSockets(e.o, cookie, nil) }))
		}
	}
	return errors.Join(err, guard.DetachIdle(e.o))
}

// remove removes those of all endpoints that share an ID with one in gone: first their addresses, so that no other pod's
// program delivers to them. Their connections are void from then on, and go when others need the room (ct_check in
// bpf/mustang/ct.h). The caller has the lock of the links.
func (e Endpoints) remove(ctx context.Context, all, gone []Endpoint) error {
	if len(gone) == 0 {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return hasID(gone, e.ID) })
	gone = slices.DeleteFunc(slices.Clone(all), func(e Endpoint) bool { return !hasID(gone, e.ID) })
	ids := make([]uint32, len(gone))
	for i, each := range gone {
		ids[i] = each.ID
	}
	err := e.o.WithTables(ctx, func() error {
		return policiesOf(e.o).Forget(ids, func() (err error) {
			for _, each := range gone {
				if err := errors.Join(e.o.Endpoints.Delete(rows.EncodeAddr(each.IP)), e.deleteSender(each)); err != nil {
					return err
				}
			}
			if err := e.o.NodeState.Invalidate(); err != nil {
				return err
			}
			for _, each := range gone {
				err = errors.Join(err, disableSockets(e.o, each.netns, left))
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	for i, each := range gone {
		if hasID(gone[:i], each.ID) {
			continue
		}
		for _, h := range objects.EndpointHooks() {
			err = errors.Join(err, e.o.Detach(objects.Link{Hook: h, ID: uint64(each.ID)}))
		}
	}
	return errors.Join(err, guard.DetachIdle(e.o))
}

// deleteSender deletes the row of an endpoint's device. The caller has the lock of the rows.
func (e Endpoints) deleteSender(each Endpoint) error {
	key := device.SenderKey(each.Host, each.netns, each.IfIndex)
	row, ok, err := e.o.Senders.Get(key)
	if err != nil || !ok || row.Endpoint != each.ID {
		return err
	}
	return guard.Delete(e.o, key)
}

func endpointNotFound(ip netip.Addr) error {
	return &NotFoundError{What: fmt.Sprintf("endpoint %s", ip)}
}
