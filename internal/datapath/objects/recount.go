// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Miscounted reports whether EndConnections is running, or was killed. It may then have freed a slot without updating
// the client's number of open connections.
func (s *Slots) Miscounted() (bool, error) {
	var mark uint64
	err := s.node.ClientConns(func(conns []uint64) { mark = atomic.LoadUint64(&conns[clientsMark]) })
	return mark != 0, err
}

// Recount corrects the numbers of open connections after a killed EndConnections, if there was one; the caller has the
// lock of the tables, as any other has that is at work. Programs open and close connections meanwhile: a number is
// wrong if two looks find the same, and it did not change in between. That of a client that never rests may stay wrong.
func (o *Objects) Recount() error {
	const looks, pause = 4, 10 * time.Millisecond
	var slotsErr error
	err := o.NodeState.ClientConns(func(conns []uint64) {
		if atomic.LoadUint64(&conns[clientsMark]) == 0 {
			return
		}
		slotsErr = mapped(o.Slots.Map, unix.PROT_READ, o.Slots.Len(), func(all []Slot) {
			last := miscounted(conns, all)
			for range looks {
				time.Sleep(pause)
				now := miscounted(conns, all)
				maps.DeleteFunc(last, func(i int, off miscount) bool { return now[i] != off })
				for i, off := range last {
					atomic.CompareAndSwapUint64(&conns[i], off.counted, off.open)
					delete(now, i)
				}
				last = now
			}
			atomic.StoreUint64(&conns[clientsMark], 0)
		})
	})
	return errors.Join(err, slotsErr)
}

// miscount is a stored number of connections, and the right one.
type miscount struct{ counted, open uint64 }

// miscounted compares the numbers of connections with the slots.
func miscounted(conns []uint64, all []Slot) map[int]miscount {
	open, before := make([]uint64, clientsTotal+1), make([]uint64, clientsTotal+1)
	for i := range before {
		before[i] = atomic.LoadUint64(&conns[i])
	}
	for i := range all {
		if state := slotState(atomic.LoadUint32(&all[i].State)); state > slotClaimed && state != SlotClosed {
			open[all[i].Client%clientRows]++
			open[clientsTotal]++
		}
	}
	found := make(map[int]miscount)
	for i, counted := range before {
		if counted != open[i] && counted == atomic.LoadUint64(&conns[i]) {
			found[i] = miscount{counted, open[i]}
		}
	}
	return found
}
