// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// clientRows is CLIENT_ROWS of bpf/mustang/maps.h, and clientsTotal the row that counts the connections of all clients.
// The row clientsMark is not 0 while EndConnections is at work.
const clientRows, clientsTotal, clientsMark = 65536, 65536, 65537

// The states of a slot without a connection.
const slotFree, slotClaimed = uint32(tcCtStateCT_FREE), uint32(tcCtStateCT_CLAIMED)

func slotState(word uint32) uint32 { return word & 0xff }

// Slots are the connections. Programs change them at any time.
type Slots struct {
	Map *ebpf.Map

	node *NodeState
}

// State returns the state of a slot: SlotSYN and so on.
func (*Slots) State(slot Slot) uint32 { return slotState(slot.State) }

// Len returns the number of slots.
func (s *Slots) Len() int { return int(s.Map.MaxEntries()) }

// Open returns the number of connections that had not ended when a program last looked at them.
func (s *Slots) Open() (n uint64, err error) {
	err = s.node.ClientConns(func(conns []uint64) { n = atomic.LoadUint64(&conns[clientsTotal]) })
	return n, err
}

// Share returns the number of open connections from which on a client gets no new one, as client_conns_allow in slots.h
// has it.
func (o *Objects) Share() (int, error) {
	var config tcCtConfig
	open, err := o.Slots.Open()
	err = errors.Join(err, o.NodeState.edit(func(r *tcNodeState) { config = r.CtConfig }))
	share := min(2*(int(config.Shared)-int(open)), int(config.Shared))
	if int(open) < int(config.Slots) {
		share = max(share, int(config.Least))
	}
	return max(share, 0), err
}

// Timeouts returns the time-outs of connections.
func (o *Objects) Timeouts() (t Timeouts, err error) {
	err = o.NodeState.edit(func(r *tcNodeState) {
		for state, timeout := range t.byState() {
			*timeout = time.Duration(r.CtConfig.Timeout[state])
		}
	})
	return t, err
}

// SetTimeouts changes them, for all connections at once.
func (o *Objects) SetTimeouts(t Timeouts) error {
	return o.NodeState.edit(func(r *tcNodeState) { r.CtConfig = t.config(r.CtConfig) })
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

// EndConnections deletes the connections of slots that match, as of copies of them, and returns their number. Programs
// may open connections in the slots at once. Recount corrects the numbers after a killed one.
func (o *Objects) EndConnections(match func(Slot) bool) (n int, err error) {
	var slotsErr error
	connsErr := o.NodeState.ClientConns(func(conns []uint64) {
		atomic.StoreUint64(&conns[clientsMark], 1)
		defer atomic.StoreUint64(&conns[clientsMark], 0)
		slotsErr = mapped(o.Slots.Map, unix.PROT_READ|unix.PROT_WRITE, o.Slots.Len(), func(all []Slot) {
			for i := range all {
				state := atomic.LoadUint32(&all[i].State) // first: it shows whether the copy is still right
				was := all[i]
				was.State = state
				if slotState(state) <= slotClaimed || !match(was) {
					continue
				}
				var ended bool
				if ended, err = o.endConnection(uint32(i), &all[i], was, conns); err != nil {
					return
				}
				if ended {
					n++
				}
			}
		})
	})
	return n, errors.Join(err, slotsErr, connsErr, o.NodeState.Invalidate())
}

// endConnection deletes the connection of a slot; false if a program has claimed it or changed its state meanwhile.
func (o *Objects) endConnection(index uint32, slot *Slot, was Slot, conns []uint64) (bool, error) {
	claim := slotClaimed | rand.Uint32()<<8
	// A claim expires after a while, if this process is stopped or killed now. Then the slot may have another connection.
	atomic.StoreUint64(&slot.Seen, monotonic())
	if !atomic.CompareAndSwapUint32(&slot.State, was.State, claim) {
		return false, nil
	}
	if slotState(was.State) != SlotClosed {
		atomic.AddUint64(&conns[was.Client%clientRows], ^uint64(0))
		atomic.AddUint64(&conns[clientsTotal], ^uint64(0))
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

func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}

// Since returns how long ago a time of a slot was.
func (*Slots) Since(ns uint64) time.Duration { return time.Duration(monotonic() - ns) }

func mapped[T any](m *ebpf.Map, prot, rows int, fn func([]T)) error {
	var row T
	memory, err := unix.Mmap(m.FD(), 0, rows*int(unsafe.Sizeof(row)), prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a table into memory: %w", err)
	}
	fn(unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), rows))
	return unix.Munmap(memory)
}

// Miscounted reports whether EndConnections is running, or was killed. It may then have freed a slot without updating
// the client's number of open connections.
func (s *Slots) Miscounted() (bool, error) {
	var mark uint64
	err := s.node.ClientConns(func(conns []uint64) { mark = atomic.LoadUint64(&conns[clientsMark]) })
	return mark != 0, err
}

// Recount corrects the numbers of open connections after a killed EndConnections, if there was one. The caller holds
// the lock of the tables. Programs open and close connections meanwhile: a number is wrong if two looks find the same,
// and it did not change in between. The number of a client that never rests may stay wrong.
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
