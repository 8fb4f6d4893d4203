// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/guard"
	"mustang/internal/datapath/objects"
)

// Recover completes what killed processes left undone: backends that no service refers to, clients' numbers of open
// connections, and programs and socket translation of endpoints and uplinks that are gone. It takes locks only if it finds something.
func (d *Datapath) Recover(ctx context.Context) error {
	if err := d.objects.OpenTables(); err != nil {
		return err
	}
	state, err := d.objects.NodeState.IDs()
	if err != nil {
		return err
	}
	if state.Retiring != 0 {
		if err := d.Services().Sweep(ctx); err != nil {
			return err
		}
	}
	if err := d.Policies().Recover(ctx); err != nil {
		return err
	}
	wrong, err := d.objects.Slots.Miscounted()
	if err == nil && wrong {
		err = d.objects.WithTables(ctx, d.objects.Recount)
	}
	if err != nil {
		return err
	}
	remains, err := d.linkRemains()
	if err != nil || len(remains) == 0 {
		return err
	}
	lock, err := lockLinks(ctx, d.objects)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if err := guard.Sweep(d.objects); err != nil {
		return err
	}
	attached, err := d.Uplinks().attached(d.objects.Detach)
	if err == nil {
		err = d.objects.WithTables(ctx, func() error { return d.Uplinks().deleteRows(d.Uplinks().orphans(attached)) })
	}
	return errors.Join(err, d.Endpoints().sweepRemains(ctx))
}

// Remains describes what killed processes left undone. What another process is just changing looks the same. It takes no
// lock and changes nothing.
func (d *Datapath) Remains() (remains []string, err error) {
	if err := d.objects.OpenTables(); err != nil {
		return nil, err
	}
	state, err := d.objects.NodeState.IDs()
	if err != nil {
		return nil, err
	}
	remains, err = d.linkRemains()
	if state.Retiring != 0 {
		remains = append(remains, "backends that services no longer have")
	}
	if pending, pendingErr := d.Policies().Pending(); pending || pendingErr != nil {
		remains, err = append(remains, "rows of policies that are behind"), errors.Join(err, pendingErr)
	}
	if wrong, countErr := d.objects.Slots.Miscounted(); wrong || countErr != nil {
		remains, err = append(remains, "numbers of open connections, some possibly wrong"), errors.Join(err, countErr)
	}
	return remains, err
}

// linkRemains describes what was left of endpoints and uplinks.
func (d *Datapath) linkRemains() (remains []string, err error) {
	// Before the rows of endpoints, which are older than their links.
	links, err := d.objects.Links()
	if err != nil {
		return nil, err
	}
	flags, err := namespaceFlags(d.objects)
	if err != nil {
		return nil, err
	}
	ids, namespaces := make(map[uint64]bool), make(map[uint64]bool)
	for row, err := range d.objects.Endpoints.All() {
		if err != nil {
			return nil, err
		}
		ids[uint64(row.Value.Id)], namespaces[row.Value.Netns] = true, true
	}
	hooks := objects.EndpointHooks()
	for _, k := range links {
		if slices.Contains(hooks, k.Hook) && !ids[k.ID] {
			remains = append(remains, fmt.Sprintf("program %s of endpoint %d, which does not exist", k.Hook.Program, k.ID))
		}
	}
	unknown, err := guard.Strangers(d.objects, ids)
	if err != nil {
		return nil, err
	}
	for _, key := range unknown {
		what := fmt.Sprintf("device %d", key.Ifindex)
		if key.Ifindex == 0 {
			what = fmt.Sprintf("the network namespace with cookie %d", key.Netns)
		}
		remains = append(remains, fmt.Sprintf("source guard of %s, without an endpoint", what))
	}
	for cookie, f := range flags {
		if f&objects.NamespacePod != 0 && !namespaces[cookie] {
			remains = append(remains, fmt.Sprintf("socket translation of the network namespace with cookie %d, without an endpoint", cookie))
		}
	}
	guards, err := guard.Orphans(d.objects)
	if err != nil {
		return remains, err
	}
	for _, k := range guards {
		remains = append(remains, fmt.Sprintf("program %s of pod %d, without a source guard now", k.Hook.Program, k.ID))
	}
	idle, err := guard.Idle(d.objects)
	if err != nil {
		return remains, err
	}
	for _, k := range idle {
		remains = append(remains, fmt.Sprintf("program %s at interface %d of the host, which no pod is on", k.Hook.Program, k.IfIndex))
	}
	uplinks, err := d.Uplinks().attached(func(k objects.Link) error {
		remains = append(remains, fmt.Sprintf("program %s of uplink %d: its device is gone", k.Hook.Program, k.IfIndex))
		return nil
	})
	if err != nil {
		return remains, err
	}
	orphans, err := d.Uplinks().orphans(uplinks)
	for _, index := range orphans {
		remains = append(remains, fmt.Sprintf("addresses of uplink %d, which does not exist", index))
	}
	return remains, err
}
