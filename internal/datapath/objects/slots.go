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

// usageClients is USAGE_CLIENTS of bpf/mustang/maps.h, and usageTotal the row that counts the connections of all clients. The
// row usageMark is not 0 while EndConnections is at work.
const usageClients, usageTotal, usageMark, usageRows = 65536, 65536, 65537, 65538

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

// Share returns the number of open connections from which on a client gets no new one, as usage_allows in slots.h has it.
func (o *Objects) Share() (int, error) {
	open, err := o.Slots.Open()
	settings, _, settingsErr := o.Settings.Get(0)
	share := min(2*(int(settings.Shared)-int(open)), int(settings.Shared))
	if int(open) < int(settings.Slots) {
		share = max(share, int(settings.Least))
	}
	return max(share, 0), errors.Join(err, settingsErr)
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
// connections in the slots at once. What a killed one leaves, Recount corrects.
func (o *Objects) EndConnections(match func(Slot) bool) (n int, err error) {
	var slotsErr error
	usageErr := mapped(o.Slots.usage, unix.PROT_READ|unix.PROT_WRITE, usageRows, func(usage []uint64) {
		atomic.StoreUint64(&usage[usageMark], 1)
		defer atomic.StoreUint64(&usage[usageMark], 0)
		slotsErr = mapped(o.Slots.Map, unix.PROT_READ|unix.PROT_WRITE, o.Slots.Len(), func(all []Slot) {
			for i := range all {
				state := atomic.LoadUint32(&all[i].State) // first: it tells whether the copy is still right
				was := all[i]
				was.State = state
				if slotState(state) <= slotClaimed || !match(was) {
					continue
				}
				var ended bool
				if ended, err = o.endConnection(uint32(i), &all[i], was, usage); err != nil {
					return
				}
				if ended {
					n++
				}
			}
		})
	})
	return n, errors.Join(err, slotsErr, usageErr, o.Filter.Change())
}

// endConnection deletes the connection of a slot; false if a program has claimed it or changed its state meanwhile.
func (o *Objects) endConnection(index uint32, slot *Slot, was Slot, usage []uint64) (bool, error) {
	claim := slotClaimed | rand.Uint32()<<8
	// A claim expires after a while, if this process is stopped or killed now. Then the slot may have another connection.
	atomic.StoreUint64(&slot.Seen, monotonic())
	if !atomic.CompareAndSwapUint32(&slot.State, was.State, claim) {
		return false, nil
	}
	if slotState(was.State) != SlotClosed {
		atomic.AddUint64(&usage[was.Client%usageClients], ^uint64(0))
		atomic.AddUint64(&usage[usageTotal], ^uint64(0))
	}
	for _, key := range []Tuple{was.From, was.Reply} {
		row, ok, err := o.Connections.Get(key)
		if err == nil && ok && row.Slot == index && row.Use == was.Use {
			err = o.Connections.Delete(key)
		}
		if err != nil {
			return false, err
		}
	}
	return atomic.CompareAndSwapUint32(&slot.State, claim, slotFree), nil
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
