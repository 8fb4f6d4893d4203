// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
)

// Recover completes what killed processes left undone: backends that no service refers to, and programs, connections and
// socket translation of endpoints and uplinks that are gone. It takes locks only if it finds something.
func (d *Datapath) Recover(ctx context.Context) error {
	if err := d.objects.OpenTables(); err != nil {
		return err
	}
	state, err := readState(d.objects)
	if err != nil {
		return err
	}
	if state.Retiring != 0 {
		if err := d.Services().Sweep(ctx); err != nil {
			return err
		}
	}
	left, err := d.hasRemains()
	if err != nil || !left {
		return err
	}
	lock, err := lockLinks(ctx, d.objects)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	_, err = d.Uplinks().attached(d.objects.Detach)
	return errors.Join(err, d.Endpoints().sweepRemains(ctx), d.Endpoints().sweepConnected())
}

// hasRemains reports whether there are links or registered namespaces of endpoints without a row, or links of uplinks
// without a device. An endpoint that is being deleted looks the same.
func (d *Datapath) hasRemains() (bool, error) {
	// Before the rows of endpoints, which are older than their links.
	links, err := d.objects.Links()
	if err != nil {
		return false, err
	}
	flags, err := namespaceFlags(d.objects)
	if err != nil {
		return false, err
	}
	ids, namespaces := make(map[uint64]bool), make(map[uint64]bool)
	for row, err := range d.objects.Endpoints.All() {
		if err != nil {
			return false, err
		}
		ids[uint64(row.Value.Id)], namespaces[row.Value.Netns] = true, true
	}
	hooks := objects.EndpointHooks()
	left := slices.ContainsFunc(links, func(k objects.Link) bool { return slices.Contains(hooks, k.Hook) && !ids[k.ID] })
	for cookie, f := range flags {
		left = left || f&objects.NamespacePod != 0 && !namespaces[cookie]
	}
	if left {
		return true, nil
	}
	_, err = d.Uplinks().attached(func(objects.Link) error {
		left = true
		return nil
	})
	return left, err
}
