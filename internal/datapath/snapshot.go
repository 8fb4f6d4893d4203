// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// snapshot is what the maps of services and backends hold.
type snapshot struct {
	// state is older than all rows: if it has not changed since, nor have they.
	state    objects.IDs
	services []service.Service
	rows     size // those of no service included
	// unreferenced are the keys of those that no service refers to.
	unreferenced set
}

// read reads all services without the lock. What changes meanwhile is read in its state before or after the change.
func (s Services) read(ctx context.Context) (*snapshot, error) {
	state, err := s.o.NodeState.IDs()
	if err != nil {
		return nil, err
	}
	t := &snapshot{state: state}
	if err := s.readServices(t); err != nil {
		return nil, err
	}
	partial := make(map[int32]bool)
	byRevision := make(map[uint32]int32, len(t.services))
	total := 0
	for i, have := range t.services {
		byRevision[have.Revision] = int32(i)
		total += cap(have.Backends)
	}
	filled := make([]int32, len(t.services))
	for row, err := range s.o.Backends.All() {
		if err != nil {
			return nil, err
		}
		t.rows.backends++
		if row.Value.Flags&objects.BackendSourceRange != 0 {
			t.rows.ranges++
		}
		i, ok := byRevision[row.Key.Revision]
		if !ok {
			t.unreferenced.addRow(row.Key, row.Value)
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
		t.rows.blocks++
		if _, ok := byRevision[row.Key.Revision]; !ok {
			t.unreferenced.blocks = append(t.unreferenced.blocks, row.Key)
		}
	}
	for i, n := range filled {
		if have := &t.services[i]; int(n) < len(have.Backends)+len(have.SourceRanges) {
			partial[int32(i)] = true
		}
	}
	return t, s.reread(ctx, t, partial)
}

// readServices reads the rows of services, and makes room for their backends.
func (s Services) readServices(t *snapshot) error {
	var totals []uint16
	sum := 0
	for row, err := range s.o.Services.All() {
		if err != nil {
			return err
		}
		have := rows.DecodeService(row.Key, row.Value)
		if row.Value.Ranges > 0 {
			have.SourceRanges = make([]netip.Prefix, row.Value.Ranges)
		}
		t.services = append(t.services, have)
		totals = append(totals, row.Value.Total)
		sum += int(row.Value.Total)
	}
	room := make([]service.Backend, sum)
	for i, n := range totals {
		t.services[i].Backends, room = room[:n:n], room[n:]
	}
	return nil
}

// reread reads services anew that changed while the maps were read.
func (s Services) reread(ctx context.Context, t *snapshot, partial map[int32]bool) error {
	if len(partial) == 0 {
		return nil
	}
	kept := t.services[:0:0]
	for i, have := range t.services {
		if !partial[int32(i)] {
			kept = append(kept, have)
			continue
		}
		found, err := s.at(ctx, have.Key())
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.ID == have.ID {
				kept = append(kept, f)
			}
		}
	}
	t.services = kept
	return nil
}

// errChanging reports that a service changed each time that it was read.
var errChanging = errors.New("it changes faster than it can be read")

// at returns the services that have a part of the frontend: none, one, or one for each protocol. Without the lock, it reads
// again what changes meanwhile.
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

// tryAt reports in whole whether the rows belong together.
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
