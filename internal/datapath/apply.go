// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// Apply makes the owner's set of services exactly want. It writes only rows that differ, in chunks: the lock is held for
// some milliseconds at a time, and never while programs are waited for. Services, connections and sockets are then in the
// state that Put and Delete of each changed service leave. All of want is checked before the first write: errors as of Put,
// and two services with one frontend. If ctx ends or the process is killed between, the services that were written are
// served, and the same call again does the rest. The result counts what was done, also if there is an error.
func (s Services) Apply(ctx context.Context, owner service.Owner, want []service.Service) (Result, error) {
	if err := errors.Join(requireOwner(owner), service.ValidateSet(want)); err != nil {
		return Result{}, err
	}
	if err := refreshFor(ctx, s.o, want); err != nil {
		return Result{}, err
	}
	t, err := s.read(ctx)
	if err == nil && t.state.Retiring != 0 && !t.unreferenced.empty() {
		// What a killed process left may have the room that is needed.
		if err = s.Sweep(ctx); err == nil {
			t, err = s.read(ctx)
		}
	}
	if err != nil {
		return Result{}, err
	}
	w := &writer{Services: s, owner: owner, planned: true, generation: t.state.LastRevision,
		sweep: t.state.Retiring != 0, used: t.rows}
	changes, err := w.plan(t, want)
	if err != nil {
		return Result{}, err
	}
	if len(changes) > 0 {
		w.addresses = knownAddresses(t.services)
		err = w.writeAll(ctx, changes)
	}
	return w.result, errors.Join(err, w.finish(ctx))
}

// writeAll writes the changes in chunks.
func (w *writer) writeAll(ctx context.Context, changes []change) error {
	lock, err := w.o.Lock(ctx)
	if err != nil {
		return err
	}
	for {
		n := w.chunkSize(changes)
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

// writer writes changes of one owner's services, and retires what they replace.
type writer struct {
	Services
	owner  service.Owner
	result Result
	lastID uint32                      // of the last service that was written, or stays
	check  func(service.Service) error // refuses a service that changes, unless it is nil
	numbers

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

	addresses addresses

	used     size // rows of backends and tables, as far as this process knows
	retires  bool // whether something is to be retired
	old      set  // what was replaced
	waits    bool // programs may use a part of it still
	udp, tcp bool // UDP sockets may, and TCP sockets that are to end

	buffers
}

// buffers hold the rows of one chunk.
type buffers struct {
	backendKeys []objects.BackendKey
	backends    []objects.Backend
	blockKeys   []objects.BackendKey
	blocks      [][rows.MaglevBlock]uint16
	rangeKeys   []objects.SourceRange
	serviceKeys []objects.ServiceKey
	services    []objects.Service
	drops       []objects.ServiceKey
	ends        []end
}

// end tells where the rows of a change end in the buffers.
type end struct {
	size
	services, drops int
}

// write writes one chunk. The caller has the lock.
//
// A killed process completes the system call that it is in. So either all services of the chunk change or none, and what
// is left to do then is found by the mark in the state, which comes first.
func (w *writer) write(ctx context.Context, chunk []change) error {
	state, err := w.o.NodeState.IDs()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return err
	}
	w.stale = w.stale || w.planned && state.LastRevision != w.generation
	if w.stale {
		w.addresses.known = nil
		if err := w.replan(ctx, chunk); err != nil {
			return err
		}
	}
	if err := requireNumbers(chunk, state); err != nil {
		return err
	}
	before := state
	w.sweep = w.sweep || state.Retiring != w.retiring
	retired := w.retires
	if err := w.encode(chunk, &state); err != nil {
		return err
	}
	if err := w.clear(w.o); err != nil {
		return err
	}
	state.Retiring = state.LastRevision
	if err := w.o.NodeState.PutIDs(state); err != nil {
		return err
	}
	w.generation, w.retiring = state.LastRevision, state.Retiring
	if err := w.store(chunk); err != nil {
		return err
	}
	if before.Retiring == 0 && w.retires == retired && w.old.empty() {
		// Nothing is left to do, which spares the call that would say so.
		state.Retiring, w.retiring = 0, 0
		return w.o.NodeState.PutIDs(state)
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
		c.found = found
		c.drop = slices.DeleteFunc(slices.Clone(found), func(f service.Service) bool {
			return !slices.ContainsFunc(c.drop, func(d service.Service) bool { return d.ID == f.ID })
		})
		for _, s := range c.put {
			if _, err := w.replaced(s, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// requireNumbers tells whether there are revisions and ids for a chunk: each has 32 bits, and none is reused.
func requireNumbers(chunk []change, state objects.IDs) error {
	revisions, ids := uint64(state.LastRevision)+1, uint64(state.LastService)
	for _, c := range chunk {
		revisions += uint64(len(c.put))
		ids += uint64(len(c.put))
	}
	if max(revisions, ids) > math.MaxUint32 {
		return errNumbersUsedUp
	}
	return nil
}

// encode fills the buffers with the rows of a chunk, and notes what they replace. It gives out ids and revisions.
func (w *writer) encode(chunk []change, state *objects.IDs) (err error) {
	w.buffers = buffers{
		w.backendKeys[:0], w.backends[:0], w.blockKeys[:0], w.blocks[:0], w.rangeKeys[:0],
		w.serviceKeys[:0], w.services[:0], w.drops[:0], w.ends[:0],
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
				if s.ID, err = w.next(w.o, state); err != nil {
					return err
				}
			}
			c.put[j] = s
			w.encodeOne(s)
		}
		for _, d := range c.drop {
			if !slices.ContainsFunc(c.put, func(s service.Service) bool { return s.Protocol == d.Protocol }) {
				w.drops = append(w.drops, rows.ServiceKey(d.Frontend, d.Protocol))
			}
		}
		w.ends = append(w.ends, w.end())
	}
	return nil
}

func (w *writer) encodeOne(s service.Service) {
	for slot, b := range s.Backends {
		w.backendKeys = append(w.backendKeys, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
		w.backends = append(w.backends, rows.EncodeBackend(b))
	}
	for i, r := range s.SourceRanges {
		w.backendKeys = append(w.backendKeys, objects.BackendKey{Revision: s.Revision, Slot: uint32(len(s.Backends) + i)})
		w.backends = append(w.backends, rows.EncodeRange(r))
		w.rangeKeys = append(w.rangeKeys, rows.SourceRangeKey(s.Revision, r))
	}
	for i, block := range rows.Table(s) {
		w.blockKeys = append(w.blockKeys, objects.BackendKey{Revision: s.Revision, Slot: uint32(i)})
		w.blocks = append(w.blocks, block)
	}
	w.serviceKeys = append(w.serviceKeys, rows.ServiceKey(s.Frontend, s.Protocol))
	w.services = append(w.services, rows.EncodeService(s))
}

// end returns where the rows end so far.
func (b *buffers) end() end {
	return end{size{len(b.backendKeys), len(b.blockKeys), len(b.rangeKeys)}, len(b.serviceKeys), len(b.drops)}
}

// store writes the buffers: backends, source ranges and tables, then the services that refer to them, and deletes last, so that a service which takes
// another's frontend is there before that goes. If a map is full, the changes that are complete stay, and the rows of the
// others are deleted.
func (w *writer) store(chunk []change) (err error) {
	defer func() { err = errors.Join(err, w.o.NodeState.Invalidate()) }()
	_, err = w.o.Backends.PutBatch(w.backendKeys, w.backends)
	n := 0
	if err == nil {
		_, err = w.o.SourceRanges.PutBatch(w.rangeKeys, make([]uint8, len(w.rangeKeys)))
	}
	if err == nil {
		_, err = w.o.LookUp.PutBatch(w.blockKeys, w.blocks)
	}
	if err == nil {
		var keys []objects.ServiceKey
		if keys, err = filterKeys(w.o, w.serviceKeys); err == nil {
			err = w.o.NodeState.AddFrontends(keys)
		}
	}
	if err == nil {
		n, err = w.o.Services.PutBatch(w.serviceKeys, w.services)
	}
	done, last := len(chunk), w.end()
	if err != nil {
		for done, last = 0, (end{}); done < len(chunk) && w.ends[done].services <= n; done++ {
			last = w.ends[done]
		}
		// Only a service that was not there fails for lack of room: to replace one takes none.
		err = errors.Join(err, w.o.Services.DeleteBatch(w.serviceKeys[last.services:n]),
			set{w.backendKeys[last.backends:], w.blockKeys[last.blocks:], w.rangeKeys[last.ranges:]}.delete(w.o))
		w.sweep = true // what the others were to delete
	}
	err = errors.Join(err, w.o.Services.DeleteBatch(w.drops[:last.drops]))
	w.result.RowsDeleted += last.drops
	w.result.RowsWritten += last.backends + last.blocks + last.ranges + last.services
	w.used = w.used.plus(last.size, 1)
	for i := range chunk[:done] {
		w.count(&chunk[i])
	}
	return errors.Join(err, w.addresses.store(w.o))
}

// resets reports whether TCP connections of the service end with their backend.
func resets(s service.Service) bool {
	return s.OnRemove == service.Reset && s.Protocol.Overlaps(service.TCP)
}

// count notes what a change that was written replaces.
func (w *writer) count(c *change) {
	for _, s := range c.put {
		w.lastID = s.ID
		w.addresses.add(s, 1)
		updated := false
		for _, f := range c.found {
			if f.ID != s.ID {
				continue
			}
			updated = true
			w.addresses.add(f, -1)
			w.tcp = w.tcp || resets(s)
			w.replace(f, false)
		}
		if updated {
			w.result.Updated++
		} else {
			w.result.Added++
		}
	}
	for _, d := range c.drop {
		w.result.Deleted++
		w.addresses.add(d, -1)
		w.tcp = w.tcp || resets(d)
		w.replace(d, true)
	}
}
