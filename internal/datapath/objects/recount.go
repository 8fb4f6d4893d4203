// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Miscounted reports whether EndConnections is at work, or was killed. It may have given a slot up then, and not have told the
// client's number of open connections.
func (s *Slots) Miscounted() (bool, error) {
	index, mark := uint32(usageMark), uint64(0)
	if err := s.usage.Lookup(&index, &mark); err != nil {
		return false, fmt.Errorf("read map %q: %w", tcMapUsage, err)
	}
	return mark != 0, nil
}

// Recount corrects the numbers of open connections after a killed EndConnections, if there was one; the caller has the lock of the
// tables, as any other has that is at work. Programs open and
// close connections meanwhile: a number is wrong if two looks find the same, and it did not change in between. That of a
// client that never rests may stay wrong.
func (o *Objects) Recount() error {
	const looks, pause = 4, 10 * time.Millisecond
	var slotsErr error
	err := mapped(o.Slots.usage, unix.PROT_READ|unix.PROT_WRITE, usageRows, func(usage []uint64) {
		if atomic.LoadUint64(&usage[usageMark]) == 0 {
			return
		}
		slotsErr = mapped(o.Slots.Map, unix.PROT_READ, o.Slots.Len(), func(all []Slot) {
			last := miscounted(usage, all)
			for range looks {
				time.Sleep(pause)
				now := miscounted(usage, all)
				maps.DeleteFunc(last, func(i int, off miscount) bool { return now[i] != off })
				for i, off := range last {
					atomic.CompareAndSwapUint64(&usage[i], off.counted, off.open)
					delete(now, i)
				}
				last = now
			}
			atomic.StoreUint64(&usage[usageMark], 0)
		})
	})
	return errors.Join(err, slotsErr)
}

// miscount is a number of connections, and what it should be.
type miscount struct{ counted, open uint64 }

// miscounted compares the numbers of connections with the slots.
func miscounted(usage []uint64, all []Slot) map[int]miscount {
	open, before := make([]uint64, usageTotal+1), make([]uint64, usageTotal+1)
	for i := range before {
		before[i] = atomic.LoadUint64(&usage[i])
	}
	for i := range all {
		if state := slotState(atomic.LoadUint32(&all[i].State)); state > slotClaimed && state != SlotClosed {
			open[all[i].Client%usageClients]++
			open[usageTotal]++
		}
	}
	found := make(map[int]miscount)
	for i, counted := range before {
		if counted != open[i] && counted == atomic.LoadUint64(&usage[i]) {
			found[i] = miscount{counted, open[i]}
		}
	}
	return found
}
