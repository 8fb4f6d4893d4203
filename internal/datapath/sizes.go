// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// size counts rows of backends, among them those of source ranges, of look-up tables, and of source ranges.
type size struct{ backends, blocks, ranges int }

// sizeOf returns those of a service.
func sizeOf(s service.Service) size {
	n := rows.Count(s)
	return size{n.Backends, n.Blocks, n.SourceRanges}
}

// plus returns the sum of a and factor times b.
func (a size) plus(b size, factor int) size {
	return size{a.backends + factor*b.backends, a.blocks + factor*b.blocks, a.ranges + factor*b.ranges}
}

// set holds keys of backends, of look-up tables and of source ranges.
type set struct {
	backends, blocks []objects.BackendKey
	ranges           []objects.SourceRange
}

func (k *set) size() size  { return size{len(k.backends), len(k.blocks), len(k.ranges)} }
func (k *set) empty() bool { return k.size() == size{} }

// add adds the keys of a stored service.
func (k *set) add(s service.Service) {
	n := sizeOf(s)
	for slot := range n.backends {
		k.backends = append(k.backends, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
	}
	for block := range n.blocks {
		k.blocks = append(k.blocks, objects.BackendKey{Revision: s.Revision, Slot: uint32(block)})
	}
	for _, r := range s.SourceRanges {
		k.ranges = append(k.ranges, rows.SourceRangeKey(s.Revision, r))
	}
}

// addRow adds the keys that a row of backends stands for.
func (k *set) addRow(key objects.BackendKey, row objects.Backend) {
	k.backends = append(k.backends, key)
	if row.Flags&objects.BackendSourceRange != 0 {
		k.ranges = append(k.ranges, rows.SourceRangeKey(key.Revision, rows.DecodeRange(row)))
	}
}

// until returns the keys of revisions up to the last one.
func (k *set) until(last uint32) set {
	later := func(k objects.BackendKey) bool { return k.Revision > last }
	return set{slices.DeleteFunc(k.backends, later), slices.DeleteFunc(k.blocks, later),
		slices.DeleteFunc(k.ranges, func(r objects.SourceRange) bool { return r.Revision > last })}
}

// reuse returns an empty set with the same memory.
func (k *set) reuse() set { return set{k.backends[:0], k.blocks[:0], k.ranges[:0]} }

// delete deletes the rows with the keys, of which some may be missing. Source ranges are found by rows of backends only, and
// so go before these.
func (k set) delete(o *objects.Objects) error {
	if err := o.SourceRanges.DeleteBatch(k.ranges); err != nil {
		return err
	}
	return errors.Join(o.LookUp.DeleteBatch(k.blocks), o.Backends.DeleteBatch(k.backends))
}

// Room returns how many rows there are for services. Errors: those of opening the maps.
func (s Services) Room() (rows.Counts, error) {
	services, backends, blocks, ranges := s.o.Services.Size(), s.o.Backends.Size(), s.o.LookUp.Size(), s.o.SourceRanges.Size()
	return rows.Counts{Services: int(services), Backends: int(backends), Blocks: int(blocks), SourceRanges: int(ranges)}, nil
}
