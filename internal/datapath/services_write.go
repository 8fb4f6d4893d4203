// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// A chunk is written under one hold of the lock. It ends at this many changes, backends or rows of tables.
const (
	chunkChanges   = 250
	chunkBackends  = 1000
	retireBackends = 32768 // old backends are retired once there are this many; until then they occupy rows
)

// run writes planned changes in chunks, and retires the replaced rows, or a killed process's remains.
func (w *writer) run(ctx context.Context, changes []change, err error) error {
	if err == nil && len(changes) > 0 {
		err = w.writeAll(ctx, changes)
	}
	return errors.Join(err, w.finish(ctx))
}

func (w *writer) writeAll(ctx context.Context, changes []change) error {
	lock, err := w.o.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { lock.Unlock() }()
	for {
		n, full := w.chunk(changes)
		if full {
			lock.Unlock()
			if err := w.retire(); err != nil {
				return err
			}
			again, err := w.o.Lock(ctx)
			if err != nil {
				return err
			}
			lock = again
			n, _ = w.chunk(changes)
		}
		if err := w.write(ctx, changes[:n]); err != nil {
			return err
		}
		if changes = changes[n:]; len(changes) == 0 {
			return nil
		}
		if err := lock.Yield(ctx); err != nil {
			return err
		}
	}
}

// chunk returns the number of changes in the next chunk: as many as fit, but at least one. full is true if old rows
// take up too many rows, and must be retired first.
func (w *writer) chunk(changes []change) (n int, full bool) {
	sum, room, old := rows.Counts{}, w.size().Plus(w.used, -1), w.old.size()
	full = max(old.Backends, old.Blocks) >= retireBackends
	for n < len(changes) && n < chunkChanges && sum.Backends < chunkBackends && sum.Blocks < chunkBackends {
		for _, s := range changes[n].put {
			sum = sum.Plus(rows.Count(s), 1)
		}
		if sum.Backends > room.Backends || sum.Blocks > room.Blocks || sum.SourceRanges > room.SourceRanges {
			return max(n, 1), full || !w.old.empty()
		}
		n++
	}
	return n, full
}

// write writes one chunk. The caller has the lock.
//
// A killed process completes the system call that it is in. So either all services of the chunk change or none. The
// mark in the state, which is written first, shows that work is left.
func (w *writer) write(ctx context.Context, chunk []change) error {
	state, err := w.o.NodeState.IDs()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return err
	}
	if w.stale = w.stale || state.LastRevision != w.generation; w.stale {
		w.addresses.known = nil
		var put []service.Service
		var remove []service.Key
		for _, c := range chunk {
			put = append(put, c.put...)
			for _, d := range c.drop {
				remove = append(remove, d.Key())
			}
		}
		if chunk, err = w.plan(put, remove, w.stored(ctx)); err != nil {
			return err
		}
	}
	w.sweep = w.sweep || state.Retiring != w.retiring
	before, retired := state.Retiring, w.retires
	if err := errors.Join(w.encode(chunk, &state), w.clear(w.o)); err != nil {
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
	if before == 0 && w.retires == retired && w.old.empty() {
		// Nothing is left to retire: clearing the mark here spares a call of clearMark.
		state.Retiring, w.retiring = 0, 0
		return w.o.NodeState.PutIDs(state)
	}
	return nil
}

// encode fills the buffers with the rows of a chunk, and gives out ids and revisions: 32 bits each, none reused.
func (w *writer) encode(chunk []change, state *objects.IDs) (err error) {
	w.new = set{w.new.backends[:0], w.new.blocks[:0], w.new.ranges[:0]}
	w.backends, w.blocks, w.serviceKeys, w.services = w.backends[:0], w.blocks[:0], w.serviceKeys[:0], w.services[:0]
	services := 1 // a revision counts the chunk: others are to see that services changed, also if rows are only deleted
	for _, c := range chunk {
		services += len(c.put)
	}
	if uint64(max(state.LastRevision, state.LastService))+uint64(services) > math.MaxUint32 {
		return errNumbersUsedUp
	}
	state.LastRevision++
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
			w.new.add(s)
			for _, b := range s.Backends {
				w.backends = append(w.backends, rows.EncodeBackend(b))
			}
			for _, r := range s.SourceRanges {
				w.backends = append(w.backends, rows.EncodeRange(r))
			}
			w.blocks = append(w.blocks, rows.Table(s)...)
			w.serviceKeys = append(w.serviceKeys, rows.ServiceKey(s.Frontend, s.Protocol))
			w.services = append(w.services, rows.EncodeService(s))
		}
	}
	return nil
}

// store writes the buffers: backends, source ranges and tables, then the services that refer to them. It deletes
// last, so that a service which takes another's frontend exists before the other is deleted. If a map is full,
// complete changes stay, and unreferenced rows are swept.
func (w *writer) store(chunk []change) (err error) {
	defer func() { err = errors.Join(err, w.o.NodeState.Invalidate()) }()
	written, err := w.storeServices()
	w.sweep = w.sweep || err != nil
	var drops []objects.ServiceKey
	for left := written; len(chunk) > 0; chunk = chunk[1:] {
		c := &chunk[0]
		if left < len(c.put) {
			break
		}
		left -= len(c.put)
		for _, d := range c.drop {
			if !slices.ContainsFunc(c.put, func(s service.Service) bool { return s.Protocol == d.Protocol }) {
				drops = append(drops, rows.ServiceKey(d.Frontend, d.Protocol))
			}
		}
		w.count(c)
	}
	w.result.RowsDeleted += len(drops)
	return errors.Join(err, w.o.Services.DeleteBatch(drops), w.addresses.store(w.o))
}

func (w *writer) storeServices() (int, error) {
	if _, err := w.o.Backends.PutBatch(w.new.backends, w.backends); err != nil {
		return 0, err
	}
	if _, err := w.o.SourceRanges.PutBatch(w.new.ranges, make([]uint8, len(w.new.ranges))); err != nil {
		return 0, err
	}
	if _, err := w.o.LookUp.PutBatch(w.new.blocks, w.blocks); err != nil {
		return 0, err
	}
	keys, err := filterKeys(w.o, w.serviceKeys)
	if err == nil {
		err = w.o.NodeState.AddFrontends(keys)
	}
	if err != nil {
		return 0, err
	}
	return w.o.Services.PutBatch(w.serviceKeys, w.services)
}

func (w *writer) count(c *change) {
	for _, s := range c.put {
		w.lastID = s.ID
		w.addresses.add(s, 1)
		n := rows.Count(s)
		w.used = w.used.Plus(n, 1)
		w.result.RowsWritten += 1 + n.Backends + n.Blocks + n.SourceRanges
		if i := slices.IndexFunc(c.found, func(f service.Service) bool { return f.ID == s.ID }); i < 0 {
			w.result.Added++
		} else {
			w.result.Updated++
			w.addresses.add(c.found[i], -1)
			w.replace(c.found[i], resets(s))
			// A program that uses the old backends must find them. Programs that have read a deleted service are not waited
			// for: they drop only packets to that service.
			w.waits = true
		}
	}
	for _, d := range c.drop {
		w.result.Deleted++
		w.addresses.add(d, -1)
		w.replace(d, resets(d))
	}
}

// replace notes that a service has other backends now, or none.
func (w *writer) replace(old service.Service, reset bool) {
	w.retires = true
	w.old.add(old)
	w.udp, w.tcp = w.udp || old.Protocol.Overlaps(service.UDP), w.tcp || reset
}

func resets(s service.Service) bool {
	return s.OnRemove == service.Reset && s.Protocol.Overlaps(service.TCP)
}

// retire deletes the rows of replaced sets of backends, and ends connected sockets to backends that are gone.
// Programs detect by themselves that a connection has lost its backend (ct_check in bpf/mustang/ct.h). It needs no
// lock: a revision is never used again.
func (w *writer) retire() (err error) {
	if !w.retires {
		return nil
	}
	if w.waits {
		w.o.WaitForPrograms()
	}
	if w.udp {
		err = retireSockets(w.o, service.UDP)
	}
	if w.tcp {
		err = errors.Join(err, retireSockets(w.o, service.TCP))
	}
	// Last: while they exist, the work is unfinished.
	err = errors.Join(err, w.old.delete(w.o))
	old := w.old.size()
	w.result.RowsDeleted += old.Backends + old.Blocks + old.SourceRanges
	w.used = w.used.Plus(old, -1)
	w.old, w.retires, w.waits, w.udp, w.tcp = set{}, false, false, false, false
	return err
}

// finish retires replaced rows, also rows that a killed process replaced, and clears the mark. The caller holds no
// lock. If the context has ended, finish does all but wait for the lock.
func (w *writer) finish(ctx context.Context) error {
	if err := w.retire(); err != nil {
		return err
	}
	if w.sweep {
		return w.Sweep(ctx)
	}
	return w.clearMark(ctx, w.retiring)
}

// clearMark records that nothing is left to retire, unless more was replaced since the mark was set.
func (s Services) clearMark(ctx context.Context, mark uint32) error {
	if mark == 0 {
		return nil
	}
	return s.o.WithLock(ctx, func() error {
		state, err := s.o.NodeState.IDs()
		if err != nil || state.Retiring != mark {
			return err
		}
		state.Retiring = 0
		return s.o.NodeState.PutIDs(state)
	})
}

// retireSockets ends the connected sockets of a protocol whose service no longer has their backend; TCP sockets only if
// the service resets them. Their processes get ECONNABORTED, senders by UDP EDESTADDRREQ, and may connect again; UDP
// would otherwise send to a missing backend for ever. Sockets are found in network namespaces with a name or a process.
func retireSockets(o *objects.Objects, p service.Protocol) error {
	return o.RetireSockets(uint8(p), func(run func() error) error {
		scopes, err := o.Namespaces.Rows()
		if err != nil || len(scopes) == 0 {
			return err
		}
		return withNamespaces(func(by map[uint64]*netns.Namespace) error {
			for cookie, ns := range by {
				if scopes[cookie].Flags == 0 {
					continue
				}
				if err := ns.Do(run); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Sweep completes the changes of services of a killed process. It deletes unreferenced backends and tables, and ends
// connections and sockets to backends that their service no longer has. Put, Delete and Apply of any process call it
// if there may be such remains.
func (s Services) Sweep(ctx context.Context) error {
	var state objects.IDs
	// Once the lock was free, a revision up to the last one is referred to by a service, or never will be.
	if err := s.o.WithLock(ctx, func() (err error) { state, err = s.o.NodeState.IDs(); return err }); err != nil {
		return err
	}
	t, err := s.read(ctx)
	if err != nil {
		return err
	}
	orphans := t.unreferenced.until(state.LastRevision)
	if orphans.empty() && state.Retiring == 0 {
		return nil
	}
	if err := s.o.NodeState.Invalidate(); err != nil { // the killed process may not have notified programs
		return err
	}
	s.o.WaitForPrograms()
	if err := errors.Join(retireSockets(s.o, service.UDP), retireSockets(s.o, service.TCP)); err != nil {
		return err
	}
	if err := s.o.WithLock(ctx, s.countAddresses); err != nil {
		return err
	}
	// Last: while they exist, the work is unfinished.
	if err := orphans.delete(s.o); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return s.clearMark(ctx, state.Retiring)
}
