// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
)

// Recover completes the work of killed processes. It deletes unreferenced backends, corrects clients' numbers of open
// connections, and ends programs and socket translation of endpoints and uplinks that are gone. It takes locks only
// if it finds something.
func (d *Datapath) Recover(ctx context.Context) error {
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
		err = d.objects.WithLock(ctx, d.objects.Recount)
	}
	if err != nil {
		return err
	}
	if remains, err := linkRemains(ctx, d.objects); err != nil || len(remains) == 0 {
		return err
	}
	return d.objects.WithLinks(ctx, func() error { return sweepRemains(ctx, d.objects) })
}

// Remains describes the unfinished work of killed processes. A change in progress in another process looks the same.
// It takes no lock and changes nothing.
func (d *Datapath) Remains() (remains []string, err error) {
	state, err := d.objects.NodeState.IDs()
	if err != nil {
		return nil, err
	}
	left, err := linkRemains(context.Background(), d.objects)
	for _, r := range left {
		remains = append(remains, r.what)
	}
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

// remain is a killed process's remainder of an endpoint, a source guard or an uplink.
type remain struct {
	what string
	// remove takes it away. The caller has the lock of the links.
	remove func() error
}

// linkRemains returns programs, rows and socket translation of endpoints, source guards and uplinks that are gone.
func linkRemains(ctx context.Context, o *objects.Objects) (remains []remain, err error) {
	found := func(remove func() error, what string, args ...any) {
		remains = append(remains, remain{fmt.Sprintf(what, args...), remove})
	}
	detach := func(k objects.Link) func() error { return func() error { return o.Detach(k) } }
	locked := func(remove func() error) func() error { return func() error { return o.WithLock(ctx, remove) } }
	// Before the rows of endpoints, which are older than their links.
	links, linksErr := o.Links()
	scopes, scopesErr := o.Namespaces.Rows()
	endpoints, endpointsErr := o.Endpoints.Rows()
	senders, sendersErr := o.Senders.Rows()
	idle, idleErr := idleOuter(o)
	if err := errors.Join(linksErr, scopesErr, endpointsErr, sendersErr, idleErr); err != nil {
		return nil, err
	}
	// alone are pods that have the source guard and are not endpoints.
	ids, namespaces, alone := make(map[uint64]bool), make(map[uint64]bool), make(map[uint64]bool)
	for _, row := range endpoints {
		ids[uint64(row.Id)], namespaces[row.Netns] = true, true
	}
	for _, row := range senders {
		if row.Flags&objects.SenderAlone != 0 {
			alone[uint64(row.Endpoint)] = true
		}
	}
	hooks, guardHooks := objects.EndpointHooks(), o.GuardHooks()
	for _, k := range links {
		switch {
		case slices.Contains(hooks, k.Hook) && !ids[k.ID]:
			found(detach(k), "program %s of endpoint %d, which does not exist", k.Hook.Program, k.ID)
		case slices.Contains(guardHooks, k.Hook) && !alone[k.ID]:
			found(detach(k), "program %s of pod %d, without a source guard now", k.Hook.Program, k.ID)
		}
	}
	for key, row := range senders {
		what := fmt.Sprintf("device %d", key.Ifindex)
		if key.Ifindex == 0 {
			what = fmt.Sprintf("the network namespace with cookie %d", key.Netns)
		}
		if row.Flags&objects.SenderAlone == 0 && !ids[uint64(row.Endpoint)] {
			found(locked(func() error { return deleteSender(o, key) }), "source guard of %s, without an endpoint", what)
		}
	}
	for cookie, scope := range scopes {
		if scope.Flags&objects.NamespacePod != 0 && !namespaces[cookie] {
			found(locked(func() error { return disableSockets(o, cookie, nil) }),
				"socket translation of the network namespace with cookie %d, without an endpoint", cookie)
		}
	}
	for _, k := range idle {
		found(func() error { return detachIdle(o) },
			"program %s at interface %d of the host, which no pod is on", k.Hook.Program, k.IfIndex)
	}
	uplinks, err := Uplinks{o}.attached(func(k objects.Link) error {
		found(detach(k), "program %s of uplink %d: its device is gone", k.Hook.Program, k.IfIndex)
		return nil
	})
	if err != nil {
		return remains, err
	}
	addresses, err := o.UplinkRows()
	for u := range uplinks {
		delete(addresses, u.IfIndex)
	}
	for index := range addresses {
		found(locked(func() error { return cmp.Or(o.Devices.Delete(uint64(index)), o.NodeState.Invalidate()) }),
			"addresses of uplink %d, which does not exist", index)
	}
	return remains, err
}

// sweepRemains removes the result of linkRemains. The caller has the lock of the links.
func sweepRemains(ctx context.Context, o *objects.Objects) error {
	remains, err := linkRemains(ctx, o)
	for _, r := range remains {
		err = errors.Join(err, r.remove())
	}
	return errors.Join(err, detachIdle(o)) // of pods whose rows went just now, too
}

// requireHost makes the network namespace with the cookie the host of all endpoints and uplinks. The programs deliver
// by the indexes of the host's devices, which stand for other devices on another host. If an endpoint or uplink of
// another host is alive, the error is a *ConflictError with what. Remains of a host that is gone are deleted. The
// caller has the lock of the links.
func requireHost(ctx context.Context, o *objects.Objects, host uint64, what string) error {
	state, err := o.NodeState.IDs()
	if err != nil || state.Host == host {
		return err
	}
	// If the maps lack a host, this one becomes it.
	if state.Host != 0 {
		if err := clearHost(ctx, o, state.Host, what); err != nil {
			return err
		}
	}
	return o.WithLock(ctx, func() error {
		state, err := o.NodeState.IDs()
		if err != nil {
			return err
		}
		state.Host = host
		return o.NodeState.PutIDs(state)
	})
}

// clearHost deletes the endpoints and uplinks of a host. It fails if one of them still has a device.
func clearHost(ctx context.Context, o *objects.Objects, host uint64, what string) error {
	endpoints := Endpoints{o}
	all, err := endpoints.list()
	if err != nil {
		return err
	}
	uplinks, err := Uplinks{o}.attached(o.Detach)
	if err != nil {
		return err
	}
	alive := len(uplinks) > 0
	var ids []uint32
	for _, e := range all {
		ids = append(ids, e.ID)
		alive = alive || endpoints.alive(e.ID)
	}
	if !alive {
		_, err := Remotes{o}.Apply(ctx, nil)
		return cmp.Or(err, endpoints.remove(ctx, ids...))
	}
	name := fmt.Sprintf("network namespace with cookie %d", host)
	_ = onHost(host, func(ns *netns.Namespace) error {
		if ns != nil {
			name = fmt.Sprintf("network namespace %q", ns.Name())
		}
		return nil
	})
	return &ConflictError{What: fmt.Sprintf(
		"%s: %q has endpoints or uplinks of another host, %s: each host needs a directory of its own", what, o.Root(), name)}
}
