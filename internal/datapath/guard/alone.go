// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
)

// SenderRow is the row of a device.
type SenderRow = objects.Row[objects.SenderKey, objects.Sender]

// Link returns the link of the program on the device of a pod that is no endpoint.
func Link(d *device.Device, id uint32) objects.Link {
	return objects.Link{Hook: d.Point.Guard().Hooks()[0], ID: uint64(id)}
}

// Alone returns the rows of pods that are no endpoints.
func Alone(o *objects.Objects) (all []SenderRow, err error) {
	for row, err := range o.Senders.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.SenderAlone != 0 {
			all = append(all, row)
		}
	}
	return all, nil
}

// IsOf reports whether the row of a pod that is no endpoint is of a network namespace, and has one of some addresses.
func IsOf(row SenderRow, cookie uint64, addresses []netip.Addr) bool {
	if row.Value.Netns != cookie {
		return false
	}
	for _, own := range row.Value.Prefix[row.Value.Prefixes-row.Value.Addresses : row.Value.Prefixes] {
		if slices.Contains(addresses, rows.DecodeAddr(own.Addr)) {
			return true
		}
	}
	return false
}

// AttachAlone attaches the program of a pod that is no endpoint, in place of an earlier one.
func AttachAlone(o *objects.Objects, d *device.Device, id uint32) error {
	link := Link(d, id)
	if isFilter(d.Point) {
		if err := setFilter(o, link.Hook, d.On, d.IfIndex); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return d.On.Do(func() error { return errors.Join(o.Detach(link), o.Attach(link, d.IfIndex)) })
}

// OnAlone reports whether a device has the program of a pod that is no endpoint.
func OnAlone(o *objects.Objects, d *device.Device, id uint32) bool {
	missing := o.Missing([]objects.Link{Link(d, id)}, uint64(d.IfIndex))
	return len(missing) == 0 || isFilter(d.Point) && hasFilter(d.On, d.IfIndex)
}

// Alive reports whether a device still has the program of a pod that is no endpoint. The host is nil if it is gone.
func Alive(o *objects.Objects, host *netns.Namespace, row SenderRow) bool {
	return row.Key.Netns == 0 && host != nil && hasFilter(host, int(row.Key.Ifindex)) ||
		slices.ContainsFunc(objects.GuardHooks(), func(h objects.Hook) bool {
			on, err := o.Attached(objects.Link{Hook: h, ID: uint64(row.Value.Endpoint)})
			return err == nil && on != 0
		})
}

// Remove ends the guard of pods that are no endpoints. The host is nil if it is gone. It deletes their rows and then
// detaches their programs: until then these let nothing pass. Filters go before their rows, which tell where they are.
// Callers have the lock of the links.
func Remove(ctx context.Context, o *objects.Objects, host *netns.Namespace, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	all, err := Alone(o)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(row SenderRow) bool { return !slices.Contains(ids, row.Value.Endpoint) })
	for _, row := range all {
		if row.Key.Netns == 0 && host != nil {
			if err := qdisc.DeleteIngress(host, int(row.Key.Ifindex)); err != nil {
				return err
			}
		}
	}
	err = o.WithLock(ctx, func() error {
		for _, row := range all {
			err = errors.Join(err, Delete(o, row.Key))
		}
		return errors.Join(err, o.NodeState.Invalidate())
	})
	for _, id := range ids {
		for _, h := range objects.GuardHooks() {
			err = errors.Join(err, o.Detach(objects.Link{Hook: h, ID: uint64(id)}))
		}
	}
	return errors.Join(err, DetachIdle(o))
}

// Orphans returns the links of pods that are no endpoints and have no row.
func Orphans(o *objects.Objects) (orphans []objects.Link, err error) {
	all, err := Alone(o)
	if err != nil {
		return nil, err
	}
	links, err := o.Links()
	if err != nil {
		return nil, err
	}
	hooks := objects.GuardHooks()
	for _, k := range links {
		known := func(row SenderRow) bool {
			return uint64(row.Value.Endpoint) == k.ID
		}
		if slices.Contains(hooks, k.Hook) && !slices.ContainsFunc(all, known) {
			orphans = append(orphans, k)
		}
	}
	return orphans, nil
}
