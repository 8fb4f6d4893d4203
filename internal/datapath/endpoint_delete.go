// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// Delete removes all addresses of the endpoint with the ID, and its programs; its connections end. The device may be
// gone. The error is a *NotFoundError if there is no such endpoint.
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

// deleteFirst removes the endpoint of the first address that matches.
func (e Endpoints) deleteFirst(ctx context.Context, none error, match func(Endpoint) bool) error {
	links, err := e.o.LockLinks(ctx)
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
		return errors.Join(none, sweepRemains(ctx, e.o))
	}
	return e.remove(ctx, all, all[i:i+1])
}

// Sweep removes endpoints whose device is gone, except those in network namespaces whose cookie keep accepts, and what
// killed processes left of deleted ones.
func (e Endpoints) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	links, err := e.o.LockLinks(ctx)
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
	return errors.Join(e.remove(ctx, all, gone), sweepRemains(ctx, e.o))
}

// remove removes those of all endpoints that share an ID with one in gone: first their addresses, so that no other
// pod's program delivers to them. Their connections are void from then on, and go when others need the room (ct_check
// in bpf/mustang/ct.h). The caller has the lock of the links.
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
	err := e.o.WithLock(ctx, func() error {
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
	return errors.Join(err, device.DetachIdle(e.o))
}

// deleteSender deletes the row of an endpoint's device. The caller has the lock of the rows.
func (e Endpoints) deleteSender(each Endpoint) error {
	key := device.SenderKey(each.Host, each.netns, each.IfIndex)
	row, ok, err := e.o.Senders.Get(key)
	if err != nil || !ok || row.Endpoint != each.ID {
		return err
	}
	return device.DeleteSender(e.o, key)
}

func endpointNotFound(ip netip.Addr) error {
	return &NotFoundError{What: fmt.Sprintf("endpoint %s", ip)}
}
