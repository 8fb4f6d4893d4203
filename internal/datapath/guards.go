// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
)

// Guards are the pods that have the source guard alone: they are no endpoints, and their packets are not translated.
type Guards struct{ o *objects.Objects }

// Guards returns the handle of such pods.
func (d *Datapath) Guards() Guards { return Guards{d.objects} }

// maxGuarded is the number of addresses of a pod that is no endpoint.
const maxGuarded = 16

// Put guards a pod: what leaves its device has one of its addresses, or of those that the spec allows, and its MAC address. If
// it fails, all is undone. Errors: those of Endpoints.Put for a device; *ConflictError for an endpoint, which is guarded anyway.
func (g Guards) Put(ctx context.Context, spec EndpointSpec) (change Change, err error) {
	t, err := g.find(spec)
	if err != nil {
		return Unchanged, err
	}
	defer t.Close()
	links, err := lockLinks(ctx, g.o)
	if err != nil {
		return Unchanged, err
	}
	defer links.Unlock()
	if err := requireHost(ctx, g.o, t.Host, "interface "+spec.String()); err != nil {
		return Unchanged, err
	}
	id, change, err := g.write(ctx, spec, t)
	if err != nil {
		return Unchanged, err
	}
	if err := t.attachOuter(g.o); err != nil {
		return Unchanged, errors.Join(err, g.remove(context.WithoutCancel(ctx), []uint32{id}))
	}
	link := g.link(t, id)
	if on, err := g.o.Attached(link); err == nil && (on == uint64(t.IfIndex) || on != 0 && link.Hook.InPeer()) {
		return change, nil
	}
	if err := t.On.Do(func() error { return errors.Join(g.o.Detach(link), g.o.Attach(link, t.IfIndex)) }); err != nil {
		return Unchanged, errors.Join(err, g.remove(context.WithoutCancel(ctx), []uint32{id}))
	}
	return change, nil
}

func (g Guards) find(spec EndpointSpec) (target, error) {
	t, err := findTarget(spec)
	if err != nil {
		return t, err
	}
	if err = t.RequireAddress(spec); err == nil && len(t.Addresses) > maxGuarded {
		err = fmt.Errorf("interface %s has %d addresses, and a pod that is no endpoint at most %d", spec, len(t.Addresses), maxGuarded)
	}
	if err != nil {
		t.Close()
	}
	return t, err
}

// link returns the link of the program on the device.
func (g Guards) link(t target, id uint32) objects.Link {
	return objects.Link{Hook: t.Point.Guard().Hooks()[0], ID: uint64(id)}
}

// write stores the row of the device, before its program: the program lets nothing pass without.
func (g Guards) write(ctx context.Context, spec EndpointSpec, t target) (id uint32, change Change, err error) {
	err = g.o.WithTables(ctx, func() error {
		key, _ := t.sender(0, true)
		have, ok, err := g.o.Senders.Get(key)
		if err != nil {
			return err
		}
		switch on, err := g.o.Attached(g.link(t, have.Endpoint)); {
		case ok && have.Flags&objects.SenderAlone == 0 && Endpoints(g).alive(have.Endpoint):
			return &ConflictError{What: fmt.Sprintf("interface %s is endpoint %d", spec, have.Endpoint)}
		case ok && have.Flags&objects.SenderAlone != 0 && err == nil && on != 0:
			id, change = have.Endpoint, Updated
		default:
			state, err := readState(g.o)
			if err != nil {
				return err
			}
			if state.LastEndpoint == math.MaxUint32 {
				return errNumbersUsedUp
			}
			state.LastEndpoint++
			id, change = state.LastEndpoint, Added
			if err := g.o.State.Put(0, state); err != nil {
				return err
			}
		}
		_, want := t.sender(id, true)
		if have == want {
			change = Unchanged
			return noteNamespace(g.o, key)
		}
		return errors.Join(g.o.Senders.Put(key, want), noteNamespace(g.o, key), g.o.Filter.Change())
	})
	return id, change, err
}

// all returns the rows of pods that are no endpoints.
func (g Guards) all() (all []objects.Row[objects.SenderKey, objects.Sender], err error) {
	if err := g.o.OpenTables(); err != nil {
		return nil, err
	}
	for row, err := range g.o.Senders.All() {
		if err != nil {
			return nil, err
		}
		if row.Value.Flags&objects.SenderAlone != 0 {
			all = append(all, row)
		}
	}
	return all, nil
}

// DeleteIP ends the guard of the pod that has the address. Its device may be gone. The error is a *NotFoundError if there is no
// such pod.
func (g Guards) DeleteIP(ctx context.Context, ip netip.Addr) error {
	links, err := lockLinks(ctx, g.o)
	if err != nil {
		return err
	}
	defer links.Unlock()
	all, err := g.all()
	if err != nil {
		return err
	}
	for _, row := range all {
		own := row.Value.Prefix[row.Value.Prefixes-uint16(row.Value.Addresses) : row.Value.Prefixes]
		for _, p := range own {
			if rows.DecodeAddr(p.Addr) == ip.Unmap() {
				return g.remove(ctx, []uint32{row.Value.Endpoint})
			}
		}
	}
	return errors.Join(&NotFoundError{What: fmt.Sprintf("source guard of %s", ip)}, g.sweepLinks())
}

// remove deletes rows, and then detaches the programs: until then these let nothing pass.
func (g Guards) remove(ctx context.Context, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	err := g.o.WithTables(ctx, func() error {
		all, err := g.all()
		for _, row := range all {
			if slices.Contains(ids, row.Value.Endpoint) {
				err = errors.Join(err, g.o.Senders.Delete(row.Key), noteNamespace(g.o, row.Key))
			}
		}
		return errors.Join(err, g.o.Filter.Change())
	})
	for _, id := range ids {
		for _, h := range objects.GuardHooks() {
			err = errors.Join(err, g.o.Detach(objects.Link{Hook: h, ID: uint64(id)}))
		}
	}
	return errors.Join(err, detachIdle(g.o))
}

// Sweep ends the guards of devices that are gone, except in network namespaces whose cookie keep accepts, and what killed
// processes left.
func (g Guards) Sweep(ctx context.Context, keep func(cookie uint64) bool) error {
	links, err := lockLinks(ctx, g.o)
	if err != nil {
		return err
	}
	defer links.Unlock()
	all, err := g.all()
	if err != nil {
		return err
	}
	var gone []uint32
	for _, row := range all {
		if !keep(row.Value.Netns) && !g.alive(row.Value.Endpoint) {
			gone = append(gone, row.Value.Endpoint)
		}
	}
	return errors.Join(g.remove(ctx, gone), g.sweepLinks())
}

func (g Guards) alive(id uint32) bool {
	return slices.ContainsFunc(objects.GuardHooks(), func(h objects.Hook) bool {
		on, err := g.o.Attached(objects.Link{Hook: h, ID: uint64(id)})
		return err == nil && on != 0
	})
}

// orphans returns the links of pods that have no row.
func (g Guards) orphans() (orphans []objects.Link, err error) {
	all, err := g.all()
	if err != nil {
		return nil, err
	}
	links, err := g.o.Links()
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

// sweepLinks detaches the programs of pods that have no row. The caller has the lock of the links.
func (g Guards) sweepLinks() error {
	orphans, err := g.orphans()
	for _, k := range orphans {
		err = errors.Join(err, g.o.Detach(k))
	}
	return errors.Join(err, detachIdle(g.o))
}

// Check returns a *DeviationError unless a pod is guarded as the spec says. It takes no lock and changes nothing.
func (g Guards) Check(spec EndpointSpec) error {
	t, err := g.find(spec)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := g.o.OpenTables(); err != nil {
		return err
	}
	key, _ := t.sender(0, true)
	have, ok, err := g.o.Senders.Get(key)
	if err != nil {
		return err
	}
	var found []string
	if _, want := t.sender(have.Endpoint, true); !ok || have != want {
		found = append(found, "what it may send is not what it should be")
	}
	outer, err := t.outerDeviations(g.o)
	if err != nil {
		return err
	}
	found = append(found, outer...)
	if on, err := g.o.Attached(g.link(t, have.Endpoint)); err != nil || on == 0 {
		found = append(found, "its program is not attached")
	}
	return deviation("source guard of "+spec.String(), found...)
}
