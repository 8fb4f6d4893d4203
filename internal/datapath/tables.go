// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/service/maglev"
)

// maxBlocks is at least the number of rows of any look-up table.
const maxBlocks = 4096

// tableEntries returns the length of a service's look-up table. It is 0, and a hash modulo the number of backends chooses,
// if equally many connections are to go to all and no other node need choose the same. The backends are in order.
func tableEntries(s service.Service) int {
	serving := s.Serving()
	differ := func(b service.Backend) bool { return max(b.Weight, 1) != max(serving[0].Weight, 1) }
	if s.Choice != service.Maglev && !slices.ContainsFunc(serving, differ) {
		return 0
	}
	return maglev.Entries(len(serving))
}

// table returns the rows of a service's look-up table. The backends are in order.
func table(s service.Service) [][maglev.Block]uint16 {
	if tableEntries(s) == 0 {
		return nil
	}
	entries := maglev.Table(s.Serving())
	blocks := make([][maglev.Block]uint16, len(entries)/maglev.Block)
	for i := range blocks {
		copy(blocks[i][:], entries[i*maglev.Block:])
	}
	return blocks
}

// size counts rows of backends and of look-up tables.
type size struct{ backends, blocks int }

// sizeOf returns those of a service.
func sizeOf(s service.Service) size {
	return size{len(s.Backends), tableEntries(s.Sorted()) / maglev.Block}
}

// plus returns the sum of a and factor times b.
func (a size) plus(b size, factor int) size {
	return size{a.backends + factor*b.backends, a.blocks + factor*b.blocks}
}

// set holds keys of backends and of look-up tables.
type set struct{ backends, blocks []objects.BackendKey }

func (k *set) size() size  { return size{len(k.backends), len(k.blocks)} }
func (k *set) empty() bool { return k.size() == size{} }

// add adds the keys of a stored service.
func (k *set) add(s service.Service) {
	rows := sizeOf(s)
	for slot := range rows.backends {
		k.backends = append(k.backends, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
	}
	for block := range rows.blocks {
		k.blocks = append(k.blocks, objects.BackendKey{Revision: s.Revision, Slot: uint32(block)})
	}
}

// until returns the keys of revisions up to the last one.
func (k *set) until(last uint32) set {
	later := func(k objects.BackendKey) bool { return k.Revision > last }
	return set{slices.DeleteFunc(k.backends, later), slices.DeleteFunc(k.blocks, later)}
}

// reuse returns an empty set with the same memory.
func (k *set) reuse() set { return set{k.backends[:0], k.blocks[:0]} }

// delete deletes the rows with the keys, of which some may be missing.
func (k set) delete(o *objects.Objects) error {
	return errors.Join(o.LookUp.DeleteBatch(k.blocks), o.Backends.DeleteBatch(k.backends))
}
