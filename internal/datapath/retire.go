// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// retireBackends is the number of old backends that are retired at once; until then they take up room.
const retireBackends = 32768

// replaced is a stored service that was changed or deleted.
type replaced struct {
	id, revision uint32
	kept         []service.Backend
	udp          bool
}

// replace notes that a service has other backends now, or none.
func (w *writer) replace(old service.Service, kept []service.Backend) {
	w.replaced = append(w.replaced, replaced{old.ID, old.Revision, kept, old.Protocol != service.TCP})
	for slot := range old.Backends {
		w.old = append(w.old, objects.BackendKey{Revision: old.Revision, Slot: uint32(slot)})
	}
	// Nobody waits for programs that have read a deleted service: a packet that they drop was for it, and a connection that
	// they store they delete again (ct_still_valid in bpf/mustang/ct.h).
	w.waits = w.waits || kept != nil
}

// mustRetire reports whether the old backends take up too much room for another chunk.
func (w *writer) mustRetire() bool {
	return len(w.old) >= retireBackends ||
		len(w.old) > 0 && w.used+chunkBackends+service.MaxBackends > int(w.o.Backends.Size())
}

// retire ends what is left of the sets of backends that were replaced: UDP connections and connected UDP sockets to
// backends that are gone, and the rows. It needs no lock: a revision is never used again, and a connection is matched
// with the revision that it was made from.
func (w *writer) retire() error {
	if len(w.replaced) == 0 {
		return nil
	}
	if w.waits {
		// A program that works with the old backends must find them.
		waitForPrograms()
	}
	err := w.retireUDP()
	// Last: as long as they are there, the work is known to be unfinished.
	err = errors.Join(err, w.o.Backends.DeleteBatch(w.old))
	w.result.RowsDeleted += len(w.old)
	w.used -= len(w.old)
	w.replaced, w.old, w.waits = w.replaced[:0], w.old[:0], false
	return err
}

func (w *writer) retireUDP() error {
	byID := make(map[uint32]replaced)
	kept := make(map[uint32]map[netip.AddrPort]bool)
	for _, r := range w.replaced {
		if !r.udp {
			continue
		}
		byID[r.id], kept[r.id] = r, make(map[netip.AddrPort]bool)
		for _, b := range r.kept {
			kept[r.id][b.Addr] = true
		}
	}
	if len(byID) == 0 {
		return nil
	}
	return errors.Join(flush(w.o, func(from objects.Tuple, c objects.Connection) bool {
		r, ok := byID[c.Service]
		return ok && from.Proto == uint8(service.UDP) && c.Revision <= r.revision &&
			!kept[r.id][decodeAddrPort(c.To.Daddr, c.To.Dport)]
	}), retireSockets(w.o))
}

// noteUnfinished looks for the mark of a process that may have died.
func (w *writer) noteUnfinished() error {
	state, err := readState(w.o)
	w.sweep = w.sweep || state.Retiring != 0
	return err
}

// finish retires what was replaced, by others that may have died too, and clears the mark. The caller has no lock. A
// context that has ended keeps it from nothing but the wait for the lock.
func (w *writer) finish(ctx context.Context) error {
	if err := w.retire(); err != nil {
		return err
	}
	if w.sweep {
		return w.Sweep(ctx)
	}
	return w.clearMark(ctx, w.retiring)
}

// clearMark tells others that nothing is left to retire, unless more was replaced since the mark was set.
func (s Services) clearMark(ctx context.Context, mark uint32) error {
	if mark == 0 {
		return nil
	}
	lock, err := s.o.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	state, err := readState(s.o)
	if err != nil || state.Retiring != mark {
		return err
	}
	state.Retiring = 0
	return s.o.State.Put(0, state)
}

// flushUnserved deletes the UDP connections of services that no longer have the backend. They would last as long as their
// clients send: UDP has no end.
func (s Services) flushUnserved(services []service.Service) error {
	byKey := make(map[objects.ServiceKey]service.Service)
	for _, have := range services {
		if have.Protocol != service.TCP {
			byKey[serviceKey(have.Frontend, service.UDP)] = have
		}
	}
	return flush(s.o, func(from objects.Tuple, c objects.Connection) bool {
		if c.Service == 0 || from.Proto != uint8(service.UDP) {
			return false
		}
		have, ok := byKey[objects.ServiceKey{Addr: from.Daddr, Port: from.Dport, Proto: from.Proto}]
		backend := decodeAddrPort(c.To.Daddr, c.To.Dport)
		return !ok || have.ID != c.Service ||
			!slices.ContainsFunc(have.Backends, func(b service.Backend) bool { return b.Addr == backend })
	})
}

// retireSockets ends the connected UDP sockets whose service no longer has their backend. Their processes get ECONNABORTED
// when they receive and EDESTADDRREQ when they send, and may connect again; otherwise they would send to nobody for ever.
// Sockets are found in network namespaces that have a name or a process.
func retireSockets(o *objects.Objects) (err error) {
	retirer, err := o.OpenUDPRetirer()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, retirer.Close()) }()
	flags, err := namespaceFlags(o)
	if err != nil || len(flags) == 0 {
		return err
	}
	return eachNamespace(func(ns *netns.Namespace, cookie uint64) error {
		if flags[cookie] == 0 {
			return nil
		}
		return ns.Do(retirer.Run)
	})
}

// Sweep completes what a process left that died while it changed services: it deletes backends that no service refers to,
// and ends UDP connections and sockets to backends that their service no longer has. Put, Delete and Apply of any process
// call it if there may be such remains.
func (s Services) Sweep(ctx context.Context) error {
	lock, err := lockTables(ctx, s.o)
	if err != nil {
		return err
	}
	// Once the lock was free, a revision up to the last one is referred to by a service, or never will be again.
	state, err := readState(s.o)
	lock.Unlock()
	if err != nil {
		return err
	}
	t, err := s.read(ctx)
	if err != nil {
		return err
	}
	orphans := slices.DeleteFunc(t.unreferenced, func(k objects.BackendKey) bool { return k.Revision > state.LastRevision })
	if len(orphans) == 0 && state.Retiring == 0 {
		return nil
	}
	waitForPrograms()
	if err := errors.Join(s.flushUnserved(t.services), retireSockets(s.o)); err != nil {
		return err
	}
	// Last: as long as they are there, the work is known to be unfinished.
	if err := s.o.Backends.DeleteBatch(orphans); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	return s.clearMark(ctx, state.Retiring)
}
