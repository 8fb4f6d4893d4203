// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/lb"
)

// Change is what a declarative call found to do.
type Change int

// The changes.
const (
	Unchanged Change = iota
	Added
	Updated
)

// String returns the change in lower case.
func (c Change) String() string {
	return [...]string{"unchanged", "added", "updated"}[c]
}

// PutService makes s be served with exactly its backends, and returns what there was to do and the service's id, which
// stays as long as the service. New connections go to the new backends from one moment on; open TCP connections stay
// with the backends that they have; what is left of UDP goes over. A frontend at a loopback address is served by socket
// translation only, and in the namespaces of AddHost only. Errors: what lb.Service.Validate says,
// *ConflictError if a service of another protocol has the frontend in part, *FullError.
func (d *Datapath) PutService(s lb.Service) (Change, uint32, error) {
	if err := s.Validate(); err != nil {
		return Unchanged, 0, err
	}
	unlock, err := d.Lock()
	if err != nil {
		return Unchanged, 0, err
	}
	defer unlock()
	old, err := d.service(s.Frontend, s.Protocol)
	if err != nil {
		return Unchanged, 0, err
	}
	if old == nil {
		id, err := d.publish(s, 0)
		return Added, id, err
	}
	if old.SameBackends(s) {
		return Unchanged, old.ID, nil
	}
	s.ID = old.ID
	if _, err := d.publish(s, old.ID); err != nil {
		return Unchanged, old.ID, err
	}
	// A program that works with the old backends still is to find them.
	waitForPrograms()
	return Updated, old.ID, d.retire(*old, s.Backends)
}

// DeleteService removes a service. lb.Any removes whichever protocols the frontend has. Open TCP connections stay. The
// error is a *NotFoundError if there is no such service.
func (d *Datapath) DeleteService(frontend netip.AddrPort, p lb.Protocol) error {
	unlock, err := d.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	found, err := d.at(frontend)
	if err != nil {
		return err
	}
	if p != lb.Any {
		found = slices.DeleteFunc(found, func(s storedService) bool { return s.Protocol != p })
	}
	if len(found) == 0 {
		return serviceNotFound(frontend, p)
	}
	for _, s := range found {
		for _, p := range s.Protocol.Each() {
			if err := remove(d.maps.Services, mustangMapServices, serviceKey(frontend, p)); err != nil {
				return err
			}
		}
		// Nobody waits for programs that have seen the service still: what they drop was for it, and what they store they
		// take back (still_wanted in bpf/mustang/connect.h).
		if err := d.retire(s, nil); err != nil {
			return err
		}
	}
	return nil
}

// Services returns all services, sorted by id.
func (d *Datapath) Services() ([]lb.Service, error) {
	// Without the lock, rows that go would end the iteration, and backends that go would be missing.
	unlock, err := d.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var (
		rows  []lb.Row
		key   mustangServiceKey
		value mustangService
	)
	entries := d.maps.Services.Iterate()
	for entries.Next(&key, &value) {
		backends, err := d.backends(value)
		if err != nil {
			return nil, err
		}
		rows = append(rows, lb.Row{
			ID: value.Id, Addr: key.Addr.Bytes, Port: toBE(key.Port), Protocol: lb.Protocol(key.Proto), Backends: backends,
		})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read services: %w", err)
	}
	return lb.Join(rows), nil
}

// Service returns the service that has a frontend with exactly this protocol. Errors: *NotFoundError; *ConflictError if a
// service of another protocol has the frontend in part.
func (d *Datapath) Service(frontend netip.AddrPort, p lb.Protocol) (lb.Service, error) {
	unlock, err := d.Lock() // or backends could go meanwhile
	if err != nil {
		return lb.Service{}, err
	}
	defer unlock()
	found, err := d.service(frontend, p)
	if err != nil {
		return lb.Service{}, err
	}
	if found == nil {
		return lb.Service{}, serviceNotFound(frontend, p)
	}
	return found.Service, nil
}

// storedService is a service as the tables have it.
type storedService struct {
	lb.Service
	revision uint32
}

// at returns the services at a frontend: none, one, or one for each protocol.
func (d *Datapath) at(frontend netip.AddrPort) ([]storedService, error) {
	var found []storedService
	for _, p := range lb.Any.Each() {
		var value mustangService
		err := d.maps.Services.Lookup(serviceKey(frontend, p), &value)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read service: %w", err)
		}
		if len(found) > 0 && found[0].ID == value.Id {
			found[0].Protocol = lb.Any
			continue
		}
		backends, err := d.backends(value)
		if err != nil {
			return nil, err
		}
		found = append(found, storedService{
			Service:  lb.Service{ID: value.Id, Frontend: frontend, Protocol: p, Backends: backends},
			revision: value.Revision,
		})
	}
	return found, nil
}

// service returns the service with exactly this protocol, or nil; or a *ConflictError if another has a part of it.
func (d *Datapath) service(frontend netip.AddrPort, p lb.Protocol) (*storedService, error) {
	found, err := d.at(frontend)
	if err != nil {
		return nil, err
	}
	for _, s := range found {
		if s.Protocol == p {
			return &s, nil
		}
		if s.Protocol == lb.Any || p == lb.Any {
			return nil, &ConflictError{What: fmt.Sprintf("service %s/%s: service %d (%s) has a part of it",
				frontend, p, s.ID, s.Service)}
		}
	}
	return nil, nil
}

// publish writes the backends of s under a new revision, and then, when they are complete, the service that names it.
// id 0 is a new service.
func (d *Datapath) publish(s lb.Service, id uint32) (_ uint32, err error) {
	ids, err := d.next(func(state *mustangState) {
		state.LastRevision++
		if id == 0 {
			state.LastService++
		}
	})
	if err != nil {
		return 0, err
	}
	s.ID = id
	if id == 0 {
		s.ID = ids.LastService
	}
	rows := lb.Rows(s)
	backends := rows[0].Backends
	var written []mustangServiceKey
	defer func() {
		if err == nil {
			return
		}
		// Only a new service can be here with rows: to change a row that is there needs no room.
		for _, key := range written {
			err = errors.Join(err, remove(d.maps.Services, mustangMapServices, key))
		}
		err = errors.Join(err, d.deleteBackends(ids.LastRevision, len(backends)))
	}()
	for slot, backend := range backends {
		key := mustangBackendKey{Revision: ids.LastRevision, Slot: uint32(slot)}
		value := mustangBackend{Addr: encodeAddr(backend.Addr()), Port: toBE(backend.Port())}
		if err := put(d.maps.Backends, mustangMapBackends, key, value); err != nil {
			return 0, err
		}
	}
	value := mustangService{Id: s.ID, Revision: ids.LastRevision, Count: uint32(len(backends))}
	if s.Frontend.Addr().IsLoopback() {
		value.Flags = uint32(mustangServiceFlagSERVICE_LOOPBACK)
	}
	for _, row := range rows {
		key := serviceKey(s.Frontend, row.Protocol)
		if err := put(d.maps.Services, mustangMapServices, key, value); err != nil {
			return 0, err
		}
		if id == 0 {
			written = append(written, key)
		}
	}
	return s.ID, nil
}

// retire ends what is left of a revision that no service names any more: its
// backends, and the UDP connections and connected UDP sockets to backends that are not kept.
func (d *Datapath) retire(old storedService, keep []netip.AddrPort) error {
	if err := d.deleteBackends(old.revision, len(old.Backends)); err != nil {
		return err
	}
	if old.Protocol == lb.TCP {
		return nil
	}
	return errors.Join(d.flushUDP(old.ID, keep), d.retireSockets())
}

func (d *Datapath) deleteBackends(revision uint32, count int) error {
	for slot := range count {
		key := mustangBackendKey{Revision: revision, Slot: uint32(slot)}
		if err := remove(d.maps.Backends, mustangMapBackends, key); err != nil {
			return err
		}
	}
	return nil
}

// backends reads the backends of a service.
func (d *Datapath) backends(s mustangService) ([]netip.AddrPort, error) {
	backends := make([]netip.AddrPort, 0, s.Count)
	for slot := range s.Count {
		var value mustangBackend
		if err := d.maps.Backends.Lookup(mustangBackendKey{Revision: s.Revision, Slot: slot}, &value); err != nil {
			return nil, fmt.Errorf("read backend %d of service %d: %w", slot, s.Id, err)
		}
		backends = append(backends, decodeAddrPort(value.Addr, value.Port))
	}
	return backends, nil
}

// flushUDP forgets the UDP connections of a service to other backends than those to keep. They would last as long as
// their clients send, for UDP has no end, and a connected UDP client would never leave a backend that is gone.
func (d *Datapath) flushUDP(id uint32, keep []netip.AddrPort) error {
	kept := make(map[netip.AddrPort]bool, len(keep))
	for _, backend := range keep {
		kept[backend] = true
	}
	return d.flush(func(from, to mustangTuple, c mustangConnection) bool {
		return c.Service == id && from.Proto == uint8(lb.UDP) && !kept[decodeAddrPort(to.Daddr, to.Dport)]
	})
}

// next changes the counters that ids come from. The caller has the lock.
func (d *Datapath) next(change func(*mustangState)) (mustangState, error) {
	var state mustangState
	if err := d.maps.State.Lookup(uint32(0), &state); err != nil {
		return state, fmt.Errorf("read state: %w", err)
	}
	change(&state)
	if err := d.maps.State.Put(uint32(0), state); err != nil {
		return state, fmt.Errorf("write state: %w", err)
	}
	return state, nil
}

// waitForPrograms returns when no program runs that read the tables before the call: membarrier waits for an RCU grace
// period, and programs run inside of RCU's read side. Where the kernel has no membarrier, a program that is late drops
// one packet.
func waitForPrograms() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL, <linux/membarrier.h>
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}
