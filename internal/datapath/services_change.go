// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// Change puts services of an owner and deletes others of it, as Put and Delete of each, but waits for the programs once. Keys of
// which the owner has no service are no error. All is checked before the first write: errors as of Put and Delete. As with Apply, what was written stays
// if ctx ends or the process is killed, and the same call again does the rest.
func (s Services) Change(ctx context.Context, owner service.Owner, put []service.Service, remove []service.Key) (Result, error) {
	w := &writer{Services: s, owner: owner}
	err := w.change(ctx, put, remove)
	return w.result, err
}

// change puts services and removes others.
func (w *writer) change(ctx context.Context, put []service.Service, remove []service.Key) error {
	if err := errors.Join(requireOwner(w.owner), service.ValidateSet(put)); err != nil {
		return err
	}
	if err := errors.Join(w.checkPorts(put...), refreshFor(ctx, w.o, put)); err != nil {
		return err
	}
	state, err := w.o.NodeState.IDs()
	if err != nil {
		return err
	}
	w.planned, w.generation = true, state.LastRevision
	changes, err := w.planSome(ctx, put, remove)
	if err == nil && len(changes) > 0 {
		err = w.writeAll(ctx, changes)
	} else {
		// What a killed process left is completed all the same: a service may be missing because of it.
		w.sweep = state.Retiring != 0
	}
	return errors.Join(err, w.finish(ctx))
}

// planSome returns the changes that put and remove services, by what is stored at their frontends, and counts those that stay.
func (w *writer) planSome(ctx context.Context, put []service.Service, remove []service.Key) ([]change, error) {
	byFrontend := make(map[netip.AddrPort]int, len(put)+len(remove))
	var changes []change
	at := func(frontend netip.AddrPort) (*change, error) {
		i, ok := byFrontend[frontend]
		if !ok {
			found, err := w.at(ctx, service.Key{Frontend: frontend})
			if err != nil {
				return nil, err
			}
			i = len(changes)
			byFrontend[frontend] = i
			changes = append(changes, change{found: found})
		}
		return &changes[i], nil
	}
	for _, key := range remove {
		c, err := at(key.Frontend)
		if err != nil {
			return nil, err
		}
		for _, f := range c.found {
			if f.Owner == w.owner && (key.Protocol == service.Any || key.Protocol == f.Protocol) {
				c.drop = append(c.drop, f)
			}
		}
	}
	var changed []service.Service
	for _, s := range put {
		c, err := at(s.Frontend)
		if err != nil {
			return nil, err
		}
		have, err := w.replaced(s, c)
		switch {
		case err != nil:
			return nil, err
		case have != nil && have.Equal(s):
			w.result.Unchanged++
			w.lastID = have.ID
			c.drop = slices.DeleteFunc(c.drop, func(d service.Service) bool { return d.ID == have.ID })
		default:
			c.put, changed = append(c.put, s), append(changed, s)
		}
	}
	if w.check != nil {
		for _, s := range changed {
			if err := w.check(s); err != nil {
				return nil, err
			}
		}
	}
	changes = slices.DeleteFunc(changes, func(c change) bool { return len(c.put)+len(c.drop) == 0 })
	return changes, w.refusePods(changed...)
}

// replaced returns the service that one is to replace, nil if there is none. The error is a *ConflictError if another one, which is
// not dropped, has a part of the frontend.
func (w *writer) replaced(s service.Service, c *change) (*service.Service, error) {
	stay := slices.DeleteFunc(slices.Clone(c.found), func(f service.Service) bool {
		return f.Protocol != s.Protocol && slices.ContainsFunc(c.drop, func(d service.Service) bool { return d.ID == f.ID })
	})
	have, err := exactly(s.Key(), stay)
	if err == nil && have != nil && have.Owner != w.owner {
		err = ownerConflict(s, *have)
	}
	return have, err
}
