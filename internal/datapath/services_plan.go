// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// apply makes the owner's services exactly want: deletions first, then changes that free rows for others.
func (w *writer) apply(ctx context.Context, want []service.Service) error {
	if err := w.begin(ctx, want); err != nil {
		return err
	}
	t, err := w.read(ctx)
	if err == nil && t.state.Retiring != 0 && !t.unreferenced.empty() {
		// Leftovers of a killed process may occupy the rows that are needed.
		if err = w.Sweep(ctx); err == nil {
			t, err = w.read(ctx)
		}
	}
	if err != nil {
		return err
	}
	w.generation, w.sweep, w.used = t.state.LastRevision, t.state.Retiring != 0, t.rows
	w.addresses = knownAddresses(t.services)
	have := make([]service.Service, 0, len(t.services))
	var others []service.Service
	for _, s := range t.services {
		if s.Owner == w.owner {
			have = append(have, s)
		} else {
			others = append(others, s)
		}
	}
	diff := service.Diff(have, want)
	if err := errors.Join(service.CheckHealthPorts(want, others), w.requireRoom(t, diff)); err != nil {
		return err
	}
	w.result.Unchanged = diff.Unchanged
	growth := func(u service.Update) int {
		more := rows.Count(u.Want).Plus(rows.Count(u.Have), -1)
		return more.Backends + more.Blocks + more.SourceRanges
	}
	slices.SortStableFunc(diff.Update, func(a, b service.Update) int { return growth(a) - growth(b) })
	put := make([]service.Service, 0, len(diff.Update)+len(diff.Add))
	remove := make([]service.Key, 0, len(diff.Delete))
	stored := make(map[netip.AddrPort][]service.Service, cap(put)+cap(remove))
	for _, u := range diff.Update {
		put = append(put, u.Want)
	}
	for _, s := range diff.Delete {
		remove = append(remove, s.Key())
		stored[s.Frontend] = nil
	}
	put = append(put, diff.Add...)
	for _, s := range put {
		stored[s.Frontend] = nil
	}
	for _, s := range t.services {
		if found, changes := stored[s.Frontend]; changes {
			stored[s.Frontend] = append(found, s)
		}
	}
	changes, err := w.plan(put, remove, func(at netip.AddrPort) ([]service.Service, error) { return stored[at], nil })
	return w.run(ctx, changes, err)
}

func (w *writer) change(ctx context.Context, put []service.Service, remove []service.Key) error {
	if err := w.begin(ctx, put); err != nil {
		return err
	}
	state, err := w.o.NodeState.IDs()
	if err == nil {
		err = w.checkPorts(put)
	}
	if err != nil {
		return err
	}
	// The work of a killed process is completed all the same: a service may be missing because of it.
	w.generation, w.sweep = state.LastRevision, state.Retiring != 0
	changes, err := w.plan(put, remove, w.stored(ctx))
	return w.run(ctx, changes, err)
}

// begin refuses an owner or services that are not valid, and brings the host's rows up to date.
func (w *writer) begin(ctx context.Context, put []service.Service) error {
	if err := errors.Join(requireOwner(w.owner), service.ValidateSet(put)); err != nil {
		return err
	}
	return refreshFor(ctx, w.o, put)
}

func (w *writer) checkPorts(want []service.Service) error {
	if !slices.ContainsFunc(want, func(s service.Service) bool { return s.NodePort || s.HealthCheckPort != 0 }) {
		return nil
	}
	others, err := w.readServices()
	others = slices.DeleteFunc(others, func(o service.Service) bool {
		return slices.ContainsFunc(want, func(s service.Service) bool { return s.Key() == o.Key() })
	})
	return errors.Join(err, service.CheckHealthPorts(want, others))
}

func (s Services) stored(ctx context.Context) func(netip.AddrPort) ([]service.Service, error) {
	return func(at netip.AddrPort) ([]service.Service, error) { return s.at(ctx, service.Key{Frontend: at}) }
}

// plan returns the changes that remove and put services, given the stored services at their frontends, and counts
// unchanged ones. Changes of one frontend go together: a service of one protocol may take rows of another's.
func (w *writer) plan(
	put []service.Service, remove []service.Key, stored func(netip.AddrPort) ([]service.Service, error),
) ([]change, error) {
	changes := make([]change, 0, len(put)+len(remove))
	byFrontend := make(map[netip.AddrPort]*change, len(put)+len(remove))
	at := func(frontend netip.AddrPort) (*change, error) {
		c := byFrontend[frontend]
		if c != nil {
			return c, nil
		}
		found, err := stored(frontend)
		changes = append(changes, change{found: found}) // which never grows
		c = &changes[len(changes)-1]
		byFrontend[frontend] = c
		return c, err
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
			continue
		case w.refuse != nil:
			if err := w.refuse(s); err != nil {
				return nil, err
			}
		}
		c.put = append(c.put, s)
	}
	changes = slices.DeleteFunc(changes, func(c change) bool { return len(c.put)+len(c.drop) == 0 })
	return changes, w.refusePods(changes)
}

// replaced returns the service that s replaces, or nil. If another service, which is not dropped, has a part of the
// frontend, the error is a *ConflictError.
func (w *writer) replaced(s service.Service, c *change) (*service.Service, error) {
	stay := c.found
	if len(c.drop) > 0 {
		stay = slices.DeleteFunc(slices.Clone(c.found), func(f service.Service) bool {
			return f.Protocol != s.Protocol && slices.ContainsFunc(c.drop, func(d service.Service) bool { return d.ID == f.ID })
		})
	}
	have, err := exactly(s.Key(), stay)
	if err == nil && have != nil && have.Owner != w.owner {
		err = ownerConflict(s, *have)
	}
	return have, err
}

// requireRoom returns a *FullError if the maps cannot hold the result.
func (w *writer) requireRoom(t *snapshot, diff service.Changes) error {
	sum := t.rows.Plus(t.unreferenced.size(), -1)
	for _, s := range diff.Add {
		sum = sum.Plus(rows.Count(s), 1)
	}
	for _, u := range diff.Update {
		sum = sum.Plus(rows.Count(u.Want), 1).Plus(rows.Count(u.Have), -1)
	}
	for _, s := range diff.Delete {
		sum = sum.Plus(rows.Count(s), -1)
	}
	switch services := len(t.services) + len(diff.Add) - len(diff.Delete); {
	case services > int(w.o.Services.Size()):
		return w.o.Services.Full()
	case sum.Backends > int(w.o.Backends.Size()):
		return w.o.Backends.Full()
	case sum.Blocks > int(w.o.LookUp.Size()):
		return w.o.LookUp.Full()
	case sum.SourceRanges > int(w.o.SourceRanges.Size()):
		return w.o.SourceRanges.Full()
	}
	return nil
}

func (s Services) refusePods(changes []change) error {
	if !slices.ContainsFunc(changes, func(c change) bool { return len(c.put) > 0 }) {
		return nil
	}
	pods, err := s.o.Endpoints.Rows()
	if err != nil {
		return err
	}
	for _, c := range changes {
		for _, each := range c.put {
			if pod, ok := pods[rows.EncodeAddr(each.Frontend.Addr())]; ok {
				return &ConflictError{What: fmt.Sprintf("service %s: the address belongs to endpoint %d", each, pod.Id)}
			}
		}
	}
	return nil
}

// refuseFrontends returns a *ConflictError if a backend is another service: calls are translated once, as by
// kube-proxy.
func (s Services) refuseFrontends(want service.Service) error {
	for _, b := range want.Backends {
		for _, p := range service.Protocols() {
			_, found, err := s.o.Services.Get(rows.ServiceKey(b.Addr, p))
			if err == nil && found && overlap(p, want.Protocol) {
				err = &ConflictError{
					What: fmt.Sprintf("service %s: backend %s is a service itself, and calls are translated once", want, b.Addr),
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// exactly returns the service that has the key, or nil; or a *ConflictError if another protocol's service has a part.
func exactly(key service.Key, found []service.Service) (*service.Service, error) {
	for _, f := range found {
		if f.Protocol == key.Protocol {
			return &f, nil
		}
		if overlap(f.Protocol, key.Protocol) {
			return nil, &ConflictError{Owner: f.Owner,
				What: fmt.Sprintf("service %s: service %d (%s, owner %s) has a part of the frontend", key, f.ID, f, f.Owner)}
		}
	}
	return nil, nil
}

func overlap(a, b service.Protocol) bool { return a == b || a == service.Any || b == service.Any }

func ownerConflict(want, have service.Service) error {
	return &ConflictError{Owner: have.Owner,
		What: fmt.Sprintf("service %s: belongs to owner %s as service %d", want, have.Owner, have.ID)}
}
