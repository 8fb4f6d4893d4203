// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"slices"

	"mustang/internal/datapath/device"
	"mustang/internal/datapath/objects"
)

// Link returns the link of the program on the device of a pod that is no endpoint.
func Link(d *device.Device, id uint32) objects.Link {
	return objects.Link{Hook: d.Point.Guard().Hooks()[0], ID: uint64(id)}
}

// Alone returns the rows of pods that are no endpoints.
func Alone(o *objects.Objects) (all []objects.Row[objects.SenderKey, objects.Sender], err error) {
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

// Alive reports whether a device still has the program of a pod that is no endpoint.
func Alive(o *objects.Objects, id uint32) bool {
	return slices.ContainsFunc(objects.GuardHooks(), func(h objects.Hook) bool {
		on, err := o.Attached(objects.Link{Hook: h, ID: uint64(id)})
		return err == nil && on != 0
	})
}

// Remove deletes the rows of pods that are no endpoints, and then detaches their programs: until then these let nothing pass.
func Remove(ctx context.Context, o *objects.Objects, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	err := o.WithTables(ctx, func() error {
		all, err := Alone(o)
		for _, row := range all {
			if slices.Contains(ids, row.Value.Endpoint) {
				err = errors.Join(err, Delete(o, row.Key))
			}
		}
		return errors.Join(err, o.Filter.Change())
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
		known := func(row objects.Row[objects.SenderKey, objects.Sender]) bool {
			return uint64(row.Value.Endpoint) == k.ID
		}
		if slices.Contains(hooks, k.Hook) && !slices.ContainsFunc(all, known) {
			orphans = append(orphans, k)
		}
	}
	return orphans, nil
}

// Sweep detaches the programs that Orphans and Idle return.
func Sweep(o *objects.Objects) error {
	orphans, err := Orphans(o)
	for _, k := range orphans {
		err = errors.Join(err, o.Detach(k))
	}
	return errors.Join(err, DetachIdle(o))
}
