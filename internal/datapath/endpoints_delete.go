// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

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
