// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/service/maglev"
)

// maxBlocks is at least the number of rows of the look-up tables of any service.
const maxBlocks = 2 * 4096

// tableEntries returns the lengths of a service's look-up tables: of all backends, and of those on this node if a policy is
// local. The backends are in order.
func tableEntries(s service.Service) (all, local int) {
	all = entries(s.Choice, s.Serving())
	if s.InternalPolicy == service.Local || s.ExternalPolicy == service.Local {
		_, near := s.LocalServing()
		local = entries(s.Choice, near)
	}
	return all, local
}

// entries is 0, and a hash modulo the number of backends chooses, if equally many connections are to go to all and no other
// node need choose the same.
func entries(choice service.Choice, serving []service.Backend) int {
	differ := func(b service.Backend) bool { return max(b.Weight, 1) != max(serving[0].Weight, 1) }
	if choice != service.Maglev && !slices.ContainsFunc(serving, differ) {
		return 0
	}
	return maglev.Entries(len(serving))
}

// table returns the rows of a service's look-up tables, one behind the other. The backends are in order.
func table(s service.Service) [][maglev.Block]uint16 {
	all, local := tableEntries(s)
	var slots []uint16
	if all > 0 {
		slots = maglev.Table(s.Serving())
	}
	if local > 0 {
		first, near := s.LocalServing()
		for _, i := range maglev.Table(near) {
			slots = append(slots, uint16(first)+i)
		}
	}
	blocks := make([][maglev.Block]uint16, len(slots)/maglev.Block)
	for i := range blocks {
		copy(blocks[i][:], slots[i*maglev.Block:])
	}
	return blocks
}

// size counts rows of backends, among them those of source ranges, of look-up tables, and of source ranges.
type size struct{ backends, blocks, ranges int }

// sizeOf returns those of a service.
func sizeOf(s service.Service) size {
	all, local := tableEntries(s.Sorted())
	return size{len(s.Backends) + len(s.SourceRanges), (all + local) / maglev.Block, len(s.SourceRanges)}
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
	rows := sizeOf(s)
	for slot := range rows.backends {
		k.backends = append(k.backends, objects.BackendKey{Revision: s.Revision, Slot: uint32(slot)})
	}
	for block := range rows.blocks {
		k.blocks = append(k.blocks, objects.BackendKey{Revision: s.Revision, Slot: uint32(block)})
	}
	for _, r := range s.SourceRanges {
		k.ranges = append(k.ranges, sourceRangeKey(s.Revision, r))
	}
}

// addRow adds the keys that a row of backends stands for.
func (k *set) addRow(key objects.BackendKey, row objects.Backend) {
	k.backends = append(k.backends, key)
	if row.Flags&objects.BackendSourceRange != 0 {
		k.ranges = append(k.ranges, sourceRangeKey(key.Revision, decodeRange(row)))
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
