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
	"mustang/internal/service"
)

// set holds keys of backends, of look-up tables and of source ranges.
type set struct {
	backends, blocks []objects.BackendKey
	ranges           []objects.SourceRange
}

func (k *set) size() rows.Counts {
	return rows.Counts{Backends: len(k.backends), Blocks: len(k.blocks), SourceRanges: len(k.ranges)}
}

func (k *set) empty() bool { return k.size() == rows.Counts{} }

func (k *set) add(s service.Service) {
	n := rows.Count(s)
	for slot := range n.Backends {
		k.backends = append(k.backends, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
	}
	for block := range n.Blocks {
		k.blocks = append(k.blocks, objects.BackendKey{Revision: s.Revision, Slot: uint32(block)})
	}
	for _, r := range s.SourceRanges {
		k.ranges = append(k.ranges, rows.SourceRangeKey(s.Revision, r))
	}
}

func (k *set) until(last uint32) set {
	later := func(k objects.BackendKey) bool { return k.Revision > last }
	return set{slices.DeleteFunc(k.backends, later), slices.DeleteFunc(k.blocks, later),
		slices.DeleteFunc(k.ranges, func(r objects.SourceRange) bool { return r.Revision > last })}
}

// delete deletes the rows with the keys. Rows may be missing. Source ranges go first: rows of backends lead to them.
func (k set) delete(o *objects.Objects) error {
	if err := o.SourceRanges.DeleteBatch(k.ranges); err != nil {
		return err
	}
	return errors.Join(o.LookUp.DeleteBatch(k.blocks), o.Backends.DeleteBatch(k.backends))
}

// snapshot is the content of the maps of services and backends.
type snapshot struct {
	state        objects.IDs // older than all rows: if it has not changed since, the rows have not changed either
	services     []service.Service
	rows         rows.Counts // including rows without a service
	unreferenced set         // the keys of rows that no service refers to
}

// read reads all services without the lock. What changes meanwhile is read in its state before or after the change.
func (s Services) read(ctx context.Context) (t *snapshot, err error) {
	t = &snapshot{}
	if t.state, err = s.o.NodeState.IDs(); err != nil {
		return nil, err
	}
	if t.services, err = s.readServices(); err != nil {
		return nil, err
	}
	byRevision := make(map[uint32]int32, len(t.services))
	for i, have := range t.services {
		byRevision[have.Revision] = int32(i)
	}
	filled := make([]int, len(t.services))
	for row, err := range s.o.Backends.All() {
		if err != nil {
			return nil, err
		}
		isRange := row.Value.Flags&objects.BackendSourceRange != 0
		t.rows.Backends++
		if isRange {
			t.rows.SourceRanges++
		}
		i, ok := byRevision[row.Key.Revision]
		if !ok {
			t.unreferenced.backends = append(t.unreferenced.backends, row.Key)
			if isRange {
				key := rows.SourceRangeKey(row.Key.Revision, rows.DecodeRange(row.Value))
				t.unreferenced.ranges = append(t.unreferenced.ranges, key)
			}
			continue
		}
		have := &t.services[i]
		if slot := int(row.Key.Slot); slot < len(have.Backends) {
			have.Backends[slot] = rows.DecodeBackend(row.Value)
			filled[i]++
		} else if slot -= len(have.Backends); slot < len(have.SourceRanges) {
			have.SourceRanges[slot] = rows.DecodeRange(row.Value)
			filled[i]++
		}
	}
	for row, err := range s.o.LookUp.All() {
		if err != nil {
			return nil, err
		}
		t.rows.Blocks++
		if _, ok := byRevision[row.Key.Revision]; !ok {
			t.unreferenced.blocks = append(t.unreferenced.blocks, row.Key)
		}
	}
	kept := t.services[:0]
	for i, have := range t.services {
		if filled[i] < len(have.Backends)+len(have.SourceRanges) { // it has changed meanwhile
			found, err := s.at(ctx, have.Key())
			if err != nil {
				return nil, err
			}
			kept = append(kept, slices.DeleteFunc(found, func(f service.Service) bool { return f.ID != have.ID })...)
			continue
		}
		kept = append(kept, have)
	}
	t.services = kept
	return t, nil
}

func (s Services) readServices() (all []service.Service, err error) {
	for row, err := range s.o.Services.All() {
		if err != nil {
			return nil, err
		}
		have := rows.DecodeService(row.Key, row.Value)
		have.Backends = make([]service.Backend, row.Value.Total)
		if row.Value.Ranges > 0 {
			have.SourceRanges = make([]netip.Prefix, row.Value.Ranges)
		}
		all = append(all, have)
	}
	return all, nil
}

// errChanging reports that a service changed each time that it was read.
var errChanging = errors.New("it changes faster than it can be read")

// at returns the services that have a part of the frontend: none, one, or one for each protocol. Without the lock, it
// repeats reads of rows that change meanwhile.
func (s Services) at(ctx context.Context, key service.Key) ([]service.Service, error) {
	for range 1000 {
		found, whole, err := s.tryAt(key)
		if err != nil || whole {
			return found, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("read service %s: %w", key, errChanging)
}

func (s Services) tryAt(key service.Key) (found []service.Service, whole bool, err error) {
	for _, p := range service.Protocols() {
		row := rows.ServiceKey(key.Frontend, p)
		value, ok, err := s.o.Services.Get(row)
		if err != nil {
			return nil, false, err
		}
		if !ok {
			continue
		}
		have := rows.DecodeService(row, value)
		for slot := range uint32(value.Total) + uint32(value.Ranges) {
			b, ok, err := s.o.Backends.Get(objects.BackendKey{Revision: value.Revision, Slot: slot})
			if err != nil || !ok {
				return nil, false, err
			}
			if slot < uint32(value.Total) {
				have.Backends = append(have.Backends, rows.DecodeBackend(b))
			} else {
				have.SourceRanges = append(have.SourceRanges, rows.DecodeRange(b))
			}
		}
		found = append(found, have)
	}
	return found, true, nil
}

// skippable are the ids that are left out if another service has their row of counts. The last ones are not.
const skippable = math.MaxUint32 - 1<<20

type numbers struct {
	taken map[uint32]bool // rows of counts that services have; nil: not read
	last  uint32          // the last id that was given out when taken was true
	again []uint32        // rows that services had that are gone
}

// next returns the id for a new service, and notes it in the state. The caller has the lock.
func (n *numbers) next(o *objects.Objects, state *objects.IDs) (uint32, error) {
	rowOf := func(id uint32) uint32 { return (&objects.Service{Id: id}).CountsRow() }
	state.LastService++
	if state.LastService <= objects.CountedServices {
		return state.LastService, nil
	}
	if n.taken == nil || n.last != state.LastService-1 {
		n.taken = map[uint32]bool{}
		for row, err := range o.Services.All() {
			if err != nil {
				return 0, err
			}
			n.taken[row.Value.CountsRow()] = true
		}
	}
	for len(n.taken) < objects.CountedServices && state.LastService < skippable && n.taken[rowOf(state.LastService)] {
		state.LastService++
	}
	n.last = state.LastService
	if row := rowOf(n.last); !n.taken[row] {
		n.taken[row], n.again = true, append(n.again, row)
	}
	return n.last, nil
}

// clear sets the rows to zero that have been given out again. A service's old connections count for the next one.
func (n *numbers) clear(o *objects.Objects) error {
	again := n.again
	n.again = nil
	return o.ClearCounts(again)
}

// addresses counts the services at each address, to detect the last one.
type addresses struct {
	known   map[objects.Addr]uint32 // all that are stored; nil: read from the map
	changed map[objects.Addr]int    // by the chunk that is being written
}

func knownAddresses(all []service.Service) addresses {
	known := make(map[objects.Addr]uint32, len(all))
	for _, s := range all {
		if answersEcho(s) {
			known[rows.EncodeAddr(s.Frontend.Addr())]++
		}
	}
	return addresses{known: known}
}

// answersEcho reports whether programs answer echo requests to the address of a service: at the addresses of nodes the
// kernel does.
func answersEcho(s service.Service) bool { return !s.NodePort && !s.Frontend.Addr().IsLoopback() }

func (a *addresses) add(s service.Service, n int) {
	if !answersEcho(s) {
		return
	}
	if a.changed == nil {
		a.changed = make(map[objects.Addr]int)
	}
	a.changed[rows.EncodeAddr(s.Frontend.Addr())] += n
}

// store writes the rows that change. The caller has the lock of the rows. After a kill, recovery counts them again.
func (a *addresses) store(o *objects.Objects) error {
	counts := make(map[objects.Addr]uint32, len(a.changed))
	for key, n := range a.changed {
		if n == 0 {
			continue
		}
		had, ok := a.known[key]
		if a.known == nil {
			var err error
			if had, ok, err = o.ServiceAddrs.Get(key); err != nil {
				return err
			}
		}
		if !ok && n < 0 {
			continue // a killed process did not come so far
		}
		counts[key] = uint32(max(int(had)+n, 0))
		if a.known != nil {
			a.known[key] = counts[key]
		}
	}
	a.changed = nil
	return putAddresses(o, counts)
}

func putAddresses(o *objects.Objects, counts map[objects.Addr]uint32) error {
	var keys, unused []objects.Addr
	var values []uint32
	for key, n := range counts {
		if n == 0 {
			unused = append(unused, key)
			continue
		}
		keys, values = append(keys, key), append(values, n)
	}
	_, err := o.ServiceAddrs.PutBatch(keys, values)
	return errors.Join(err, o.ServiceAddrs.DeleteBatch(unused))
}

// countAddresses counts the services at all addresses again. The caller has the lock of the rows.
func (s Services) countAddresses() error {
	all, err := s.readServices()
	if err != nil {
		return err
	}
	have, err := s.o.ServiceAddrs.Rows()
	if err != nil {
		return err
	}
	counts := knownAddresses(all).known
	for key, n := range have {
		if counts[key] == n {
			delete(counts, key)
		} else {
			counts[key] += 0 // one without services is deleted
		}
	}
	return putAddresses(s.o, counts)
}

// Services are the services of a datapath. Each has an owner, and a call for one owner changes no other's.
type Services struct{ o *objects.Objects }

// Result counts the changes of Apply.
type Result struct {
	// Services by change.
	Added, Updated, Deleted, Unchanged int
	// RowsWritten and RowsDeleted count rows of the maps of services, backends and tables.
	RowsWritten, RowsDeleted int
}

// writer writes changes of one owner's services, and retires the replaced rows.
type writer struct {
	Services
	owner  service.Owner
	result Result
	lastID uint32                      // of the last service that was written, or stays
	refuse func(service.Service) error // refuses a service that changes, unless it is nil
	numbers

	// generation is the last revision when changes were planned without the lock, or the last one written since. If the
	// maps have another, each chunk is planned again from the current rows.
	generation uint32
	stale      bool

	retiring uint32 // the mark in the state of unfinished retiring, for other processes; 0: none
	sweep    bool   // another process has left its mark, and may have died; or this one has left unreferenced rows

	addresses addresses

	used     rows.Counts // of backends and tables, as counted by this process
	retires  bool        // whether something is to be retired
	old      set         // replaced rows
	waits    bool        // programs may use a part of it still
	udp, tcp bool        // UDP sockets may, and TCP sockets that are to end

	// The rows of one chunk.
	new         set
	backends    []objects.Backend
	blocks      [][rows.MaglevBlock]uint16
	serviceKeys []objects.ServiceKey
	services    []objects.Service
}

type change struct {
	put   []service.Service // to be written
	drop  []service.Service // stored ones to be deleted
	found []service.Service // at the frontend when the change was planned
}

// requireOwner refuses the zero owner.
func requireOwner(owner service.Owner) error {
	if owner == service.NoOwner || owner > service.Lab {
		return fmt.Errorf("invalid owner %s", owner)
	}
	return nil
}
