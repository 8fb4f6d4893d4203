// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// A chunk is written under one hold of the lock. It ends when it has this many changes, or reaches this many backends.
const (
	chunkChanges  = 250
	chunkBackends = 1000
)

// change is all that changes at one frontend.
type change struct {
	put  []service.Service // to be written
	drop []service.Service // stored ones to be deleted
	// found are the services at the frontend when the change was planned.
	found []service.Service
}

func (c *change) frontend() netip.AddrPort {
	return slices.Concat(c.put, c.drop)[0].Frontend
}

// Apply makes the owner's set of services exactly want. It writes only rows that differ, in chunks: the lock is held for
// some milliseconds at a time, and never while programs are waited for. Services, connections and sockets are then in the
// state that Put and Delete of each changed service leave. All of want is checked before the first write: errors as of Put,
// and two services with one frontend. If ctx ends or the process is killed between, the services that were written are
// served, and the same call again does the rest. The result counts what was done, also if there is an error.
func (s Services) Apply(ctx context.Context, owner service.Owner, want []service.Service) (Result, error) {
	if err := errors.Join(requireOwner(owner), service.ValidateSet(want)); err != nil {
		return Result{}, err
	}
	for _, w := range want {
		if err := requireSupported(w); err != nil {
			return Result{}, err
		}
	}
	if err := s.o.OpenTables(); err != nil {
		return Result{}, err
	}
	t, err := s.read(ctx)
	if err != nil {
		return Result{}, err
	}
	w := &writer{Services: s, owner: owner, planned: true, generation: t.state.LastRevision,
		sweep: t.state.Retiring != 0, used: t.backends}
	changes, err := w.plan(t, want)
	if err != nil {
		return Result{}, err
	}
	if len(changes) > 0 {
		err = w.writeAll(ctx, changes)
	}
	return w.result, errors.Join(err, w.finish(ctx))
}

// plan returns the changes that make the owner's services those wanted, deletions first, and counts those that stay.
func (w *writer) plan(t *snapshot, want []service.Service) ([]change, error) {
	var have []service.Service
	others := make(map[netip.AddrPort][]service.Service)
	rows := 0
	for _, s := range t.services {
		rows += len(s.Protocol.Each())
		if s.Owner == w.owner {
			have = append(have, s)
		} else {
			others[s.Frontend] = append(others[s.Frontend], s)
		}
	}
	for _, s := range want {
		for _, other := range others[s.Frontend] {
			if overlap(other.Protocol, s.Protocol) {
				return nil, ownerConflict(s, other)
			}
		}
	}
	diff := service.Diff(have, want)
	w.result.Unchanged = diff.Unchanged
	if err := w.requireRoom(t, rows, diff); err != nil {
		return nil, err
	}
	// Those of one frontend go together: a service of one protocol may take rows of one of another.
	byFrontend := make(map[netip.AddrPort]int, len(diff.Delete))
	changes := make([]change, 0, len(diff.Delete)+len(diff.Update)+len(diff.Add))
	at := func(frontend netip.AddrPort) *change {
		i, ok := byFrontend[frontend]
		if !ok {
			i = len(changes)
			byFrontend[frontend] = i
			changes = append(changes, change{})
		}
		return &changes[i]
	}
	for _, s := range diff.Delete {
		c := at(s.Frontend)
		c.drop, c.found = append(c.drop, s), append(c.found, s)
	}
	for _, u := range diff.Update {
		c := at(u.Want.Frontend)
		c.put, c.found = append(c.put, u.Want), append(c.found, u.Have)
	}
	for i, s := range diff.Add {
		c := at(s.Frontend)
		if c.put == nil {
			c.put = diff.Add[i : i+1 : i+1]
			continue
		}
		c.put = append(c.put, s)
	}
	return changes, nil
}

// requireRoom returns a *FullError if the maps cannot hold the result.
func (w *writer) requireRoom(t *snapshot, rows int, diff service.Changes) error {
	backends := t.backends
	for _, s := range diff.Add {
		rows += len(s.Protocol.Each())
		backends += len(s.Backends)
	}
	for _, u := range diff.Update {
		backends += len(u.Want.Backends) - len(u.Have.Backends)
	}
	for _, s := range diff.Delete {
		rows -= len(s.Protocol.Each())
		backends -= len(s.Backends)
	}
	backends -= len(t.unreferenced)
	if size := w.o.Services.Size(); rows > int(size) {
		return &objects.FullError{Map: "services", Size: size}
	}
	if size := w.o.Backends.Size(); backends > int(size) {
		return &objects.FullError{Map: "backends", Size: size}
	}
	return nil
}

// writeAll writes the changes in chunks.
func (w *writer) writeAll(ctx context.Context, changes []change) error {
	lock, err := w.o.Lock(ctx)
	if err != nil {
		return err
	}
	for {
		n := chunkSize(changes)
		if err = w.write(ctx, changes[:n]); err != nil {
			break
		}
		if changes = changes[n:]; len(changes) == 0 {
			break
		}
		if w.mustRetire() {
			lock.Unlock()
			if err := w.retire(); err != nil {
				return err
			}
			if lock, err = w.o.Lock(ctx); err != nil {
				return err
			}
		} else if err = lock.Yield(ctx); err != nil {
			break
		}
	}
	lock.Unlock()
	return err
}

// chunkSize returns the number of changes that go into the next chunk.
func chunkSize(changes []change) int {
	n, backends := 0, 0
	for n < len(changes) && n < chunkChanges && backends < chunkBackends {
		for _, s := range changes[n].put {
			backends += len(s.Backends)
		}
		n++
	}
	return n
}

// writer writes changes of one owner's services, and retires what they replace.
type writer struct {
	Services
	owner  service.Owner
	result Result
	lastID uint32 // of the last service that was written

	// planned tells that the changes were planned without the lock. generation is then the last revision that they were
	// planned with, or that was written since. If the maps have another, each change is planned anew from the rows that it
	// meets.
	planned    bool
	generation uint32
	stale      bool

	// retiring is the mark in the state that tells others that something is to be retired still; 0 if nothing is.
	retiring uint32
	// sweep is whether another process has left its mark: it may have died.
	sweep bool

	used     int // rows of backends, as far as this process knows
	replaced []replaced
	old      []objects.BackendKey // the backends of all in replaced
	waits    bool                 // programs may use one of them still

	buffers
}

// buffers hold the rows of one chunk.
type buffers struct {
	backendKeys []objects.BackendKey
	backends    []objects.Backend
	serviceKeys []objects.ServiceKey
	services    []objects.Service
	drops       []objects.ServiceKey
	ends        []end
}

// end tells where the rows of a change end in the buffers.
type end struct{ backends, services int }

// write writes one chunk. The caller has the lock.
//
// A killed process completes the system call that it is in. So either all services of the chunk change or none, and what
// is left to do then is found by the mark in the state, which comes first.
func (w *writer) write(ctx context.Context, chunk []change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	state, err := readState(w.o)
	if err != nil {
		return err
	}
	w.stale = w.stale || w.planned && state.LastRevision != w.generation
	if w.stale {
		if err := w.replan(ctx, chunk); err != nil {
			return err
		}
	}
	before := state
	w.sweep = w.sweep || state.Retiring != w.retiring
	retired := len(w.replaced)
	w.encode(chunk, &state)
	state.Retiring = state.LastRevision
	if err := w.o.State.Put(0, state); err != nil {
		return err
	}
	w.generation, w.retiring = state.LastRevision, state.Retiring
	if err := w.store(chunk); err != nil {
		return err
	}
	if before.Retiring == 0 && len(w.replaced) == retired && len(w.old) == 0 {
		// Nothing is left to do, which spares the call that would say so.
		state.Retiring, w.retiring = 0, 0
		return w.o.State.Put(0, state)
	}
	return nil
}

// replan plans changes anew from what is stored at their frontends now.
func (w *writer) replan(ctx context.Context, chunk []change) error {
	for i := range chunk {
		c := &chunk[i]
		found, err := w.at(ctx, service.Key{Frontend: c.frontend()})
		if err != nil {
			return err
		}
		for _, s := range c.put {
			for _, f := range found {
				if f.Owner != w.owner && overlap(s.Protocol, f.Protocol) {
					return ownerConflict(s, f)
				}
			}
		}
		drop := c.drop[:0:0]
		for _, f := range found {
			if slices.ContainsFunc(c.drop, func(d service.Service) bool { return d.ID == f.ID }) {
				drop = append(drop, f)
			}
		}
		c.drop, c.found = drop, found
	}
	return nil
}

// encode fills the buffers with the rows of a chunk, and notes what they replace. It gives out ids and revisions.
func (w *writer) encode(chunk []change, state *objects.State) {
	w.buffers = buffers{
		w.backendKeys[:0], w.backends[:0], w.serviceKeys[:0], w.services[:0], w.drops[:0], w.ends[:0],
	}
	state.LastRevision++ // also if rows are only deleted: others are to see that the services changed
	for i := range chunk {
		c := &chunk[i]
		for j, s := range c.put {
			state.LastRevision++
			s = s.Sorted()
			s.Owner, s.Revision, s.ID = w.owner, state.LastRevision, 0
			for _, f := range c.found {
				if f.Protocol == s.Protocol {
					s.ID = f.ID
				}
			}
			if s.ID == 0 {
				state.LastService++
				s.ID = state.LastService
			}
			c.put[j] = s
			w.encodeOne(s)
		}
		w.ends = append(w.ends, end{len(w.backendKeys), len(w.serviceKeys)})
		for _, d := range c.drop {
			for _, p := range d.Protocol.Each() {
				if !slices.ContainsFunc(c.put, func(s service.Service) bool { return overlap(s.Protocol, p) }) {
					w.drops = append(w.drops, serviceKey(d.Frontend, p))
				}
			}
		}
	}
}

func (w *writer) encodeOne(s service.Service) {
	for slot, b := range s.Backends {
		w.backendKeys = append(w.backendKeys, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
		w.backends = append(w.backends, encodeBackend(b))
	}
	row := encodeService(s)
	for _, p := range s.Protocol.Each() {
		w.serviceKeys = append(w.serviceKeys, serviceKey(s.Frontend, p))
		w.services = append(w.services, row)
	}
}

// store writes the buffers: backends, then the services that refer to them. If a map is full, the changes that are complete
// stay, and the rows of the others are deleted.
func (w *writer) store(chunk []change) error {
	if err := w.o.Services.DeleteBatch(w.drops); err != nil {
		return err
	}
	w.result.RowsDeleted += len(w.drops)
	_, err := w.o.Backends.PutBatch(w.backendKeys, w.backends)
	n := 0
	if err == nil {
		n, err = w.o.Services.PutBatch(w.serviceKeys, w.services)
	}
	done, last := len(chunk), end{len(w.backendKeys), len(w.serviceKeys)}
	if err != nil {
		for done, last = 0, (end{}); done < len(chunk) && w.ends[done].services <= n; done++ {
			last = w.ends[done]
		}
		// Only the first row of a service fails for lack of room: to replace one takes none.
		err = errors.Join(err, w.o.Services.DeleteBatch(w.serviceKeys[last.services:n]),
			w.o.Backends.DeleteBatch(w.backendKeys[last.backends:]))
		w.sweep = true // what the others were to delete
	}
	w.result.RowsWritten += last.backends + last.services
	w.used += last.backends
	for i := range chunk[:done] {
		w.count(&chunk[i])
	}
	return err
}

// count notes what a change that was written replaces.
func (w *writer) count(c *change) {
	for _, s := range c.put {
		w.lastID = s.ID
		updated := false
		for _, f := range c.found {
			if f.ID != s.ID {
				continue
			}
			updated = true
			w.replace(f, s.Backends)
		}
		if updated {
			w.result.Updated++
		} else {
			w.result.Added++
		}
	}
	for _, d := range c.drop {
		w.result.Deleted++
		w.replace(d, nil)
	}
}
