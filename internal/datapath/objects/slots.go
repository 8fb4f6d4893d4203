// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// usageClients is USAGE_CLIENTS of bpf/mustang/maps.h, and usageTotal the row that counts the connections of all clients.
const usageClients, usageTotal = 65536, 65536

// The states of a slot that are no connections.
const slotFree, slotClaimed = uint32(tcCtStateCT_FREE), uint32(tcCtStateCT_CLAIMED)

// slotState returns the state in a slot's word, which has flags too.
func slotState(word uint32) uint32 { return word & 0xff }

// Slots are the connections. Programs change them at any time.
type Slots struct {
	Map *ebpf.Map

	usage *ebpf.Map
}

// State returns the state of a slot: SlotSYN and so on.
func (*Slots) State(slot Slot) uint32 { return slotState(slot.State) }

// Len returns the number of slots.
func (s *Slots) Len() int { return int(s.Map.MaxEntries()) }

// Open returns the number of connections that had not ended when a program last looked at them.
func (s *Slots) Open() (n uint64, err error) {
	total := uint32(usageTotal)
	if err := s.usage.Lookup(&total, &n); err != nil {
		return 0, fmt.Errorf("read map %q: %w", tcMapUsage, err)
	}
	return n, nil
}

// Each calls fn with a copy of each slot that has a connection, until fn returns false.
func (s *Slots) Each(fn func(index uint32, slot Slot) bool) error {
	return mapped(s.Map, unix.PROT_READ, s.Len(), func(all []Slot) {
		for i := range all {
			if slotState(atomic.LoadUint32(&all[i].State)) > slotClaimed && !fn(uint32(i), all[i]) {
				return
			}
		}
	})
}

// EndConnections deletes the connections of slots that match, as of copies of them, and returns their number. Programs may open
// connections in the slots at once.
func (o *Objects) EndConnections(match func(Slot) bool) (n int, err error) {
	mapErr := mapped(o.Slots.Map, unix.PROT_READ|unix.PROT_WRITE, o.Slots.Len(), func(all []Slot) {
		for i := range all {
			state := atomic.LoadUint32(&all[i].State)
			if slotState(state) <= slotClaimed || !match(all[i]) {
				continue
			}
			// A claim expires after a while, if this process is killed now.
			if !atomic.CompareAndSwapUint32(&all[i].State, state, slotClaimed|rand.Uint32()<<8) {
				continue
			}
			atomic.StoreUint64(&all[i].Seen, monotonic())
			if err = o.emptySlot(uint32(i), &all[i], state); err != nil {
				return
			}
			atomic.StoreUint32(&all[i].State, slotFree)
			n++
		}
	})
	return n, errors.Join(err, mapErr, o.Filter.Change())
}

// emptySlot deletes the rows of a slot that was claimed in a state.
func (o *Objects) emptySlot(index uint32, slot *Slot, state uint32) error {
	if slotState(state) != SlotClosed {
		if err := mapped(o.Slots.usage, unix.PROT_READ|unix.PROT_WRITE, usageTotal+1, func(all []uint64) {
			atomic.AddUint64(&all[slot.Client%usageClients], ^uint64(0))
			atomic.AddUint64(&all[usageTotal], ^uint64(0))
		}); err != nil {
			return err
		}
	}
	for _, key := range []Tuple{slot.From, slot.Reply} {
		row, ok, err := o.Connections.Get(key)
		if err == nil && ok && row.Slot == index && row.Use == slot.Use {
			err = o.Connections.Delete(key)
		}
		if err != nil {
			return err
		}
	}
	slot.Use++
	return nil
}

// monotonic returns the time of CLOCK_MONOTONIC in ns, as programs do.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}

// Since returns how long ago a time of a slot was.
func (*Slots) Since(ns uint64) time.Duration { return time.Duration(monotonic() - ns) }

// mapped calls fn with the rows of an array map in memory.
func mapped[T any](m *ebpf.Map, prot, rows int, fn func([]T)) error {
	var row T
	memory, err := unix.Mmap(m.FD(), 0, rows*int(unsafe.Sizeof(row)), prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a table into memory: %w", err)
	}
	fn(unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), rows))
	return unix.Munmap(memory)
}
