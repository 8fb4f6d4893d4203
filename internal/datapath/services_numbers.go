// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"

	"mustang/internal/datapath/objects"
)

// skippable are the ids that are left out if another service has their row of counts. The last ones are not.
const skippable = math.MaxUint32 - 1<<20

// numbers gives out the ids of services.
type numbers struct {
	taken map[uint32]bool // rows of counts that services have; nil: not read
	last  uint32          // the last id that was given out when taken was true
	again []uint32        // rows that services had that are gone
}

// next returns the id for a new service, and notes it in the state. The caller has the lock.
func (n *numbers) next(o *objects.Objects, state *objects.IDs) (uint32, error) {
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

// rowOf returns the row of counts of a service.
func rowOf(id uint32) uint32 { return (&objects.Service{Id: id}).CountsRow() }

// clear sets the rows to zero that have been given out again. Connections that a service leaves behind are counted for the next one.
func (n *numbers) clear(o *objects.Objects) error {
	if len(n.again) == 0 {
		return nil
	}
	err := o.ClearCounts(n.again)
	n.again = n.again[:0]
	return err
}
