// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
)

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
