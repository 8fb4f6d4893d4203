// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"

	"mustang/internal/service"
)

// MaxBlocks is at least the number of rows of the look-up tables of any service.
const MaxBlocks = 2 * 4096

// TableEntries returns the lengths of a service's look-up tables: of all backends, and, if a policy is local, of this
// node's backends. The backends are in order.
func TableEntries(s service.Service) (all, local int) {
	all = entries(s.Choice, s.Serving())
	if s.InternalPolicy == service.Local || s.ExternalPolicy == service.Local {
		_, near := s.LocalServing()
		local = entries(s.Choice, near)
	}
	return all, local
}

// entries returns 0 if all backends get equally many connections and other nodes need not choose the same. A hash
// modulo the number of backends then chooses.
func entries(choice service.Choice, serving []service.Backend) int {
	differ := func(b service.Backend) bool { return max(b.Weight, 1) != max(serving[0].Weight, 1) }
	if choice != service.Maglev && !slices.ContainsFunc(serving, differ) {
		return 0
	}
	return maglevEntries(len(serving))
}

// Table returns the rows of a service's look-up tables, one behind the other. The backends are in order.
func Table(s service.Service) [][MaglevBlock]uint16 {
	all, local := TableEntries(s)
	var slots []uint16
	if all > 0 {
		slots = maglevTable(s.Serving())
	}
	if local > 0 {
		first, near := s.LocalServing()
		for _, i := range maglevTable(near) {
			slots = append(slots, uint16(first)+i)
		}
	}
	blocks := make([][MaglevBlock]uint16, len(slots)/MaglevBlock)
	for i := range blocks {
		copy(blocks[i][:], slots[i*MaglevBlock:])
	}
	return blocks
}
