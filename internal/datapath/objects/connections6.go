// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// copier copies connections of layout 6 into slots.
type copier struct {
	*migration
	slots []Slot
	usage []uint64
	next  int // the first slot that was not looked at yet
	ids   map[Addr]uint32
}

// copyConnections copies the connections that the new programs do not have, while old and new programs open some. Rows of
// layout 6 have no time: all were seen just now.
func (m *migration) copyConnections() error {
	c := &copier{migration: m, ids: make(map[Addr]uint32)}
	for row, err := range m.old.endpoints.All() {
		if err != nil {
			return err
		}
		c.ids[row.Key] = row.Value.Id
	}
	if err := m.copyFilter(); err != nil {
		return err
	}
	const prot = unix.PROT_READ | unix.PROT_WRITE
	var err error
	mapErr := mapped(m.o.Slots.Map, prot, m.o.Slots.Len(), func(slots []Slot) {
		c.slots = slots
		err = mapped(m.o.Slots.usage, prot, usageRows, func(usage []uint64) {
			c.usage = usage
			err = c.all()
		})
	})
	return errors.Join(err, mapErr)
}

func (c *copier) all() error {
	for row, err := range c.old.connections.All() {
		if err == nil && row.Value.Flags&ConnectionForward != 0 {
			err = c.one(row.Key, row.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one copies a connection, by its row of the client's direction. One that has lost the other row is over.
func (c *copier) one(from Tuple, forward connection6) error {
	key := reverse(forward.To)
	reply, ok, err := c.old.connections.Get(key)
	if err != nil || !ok || reply.To != reverse(from) {
		return err
	}
	for _, key := range []Tuple{from, key} {
		if alive, err := c.alive(key); err != nil || alive {
			return err
		}
	}
	revision, err := c.revision(from, forward)
	if err != nil {
		return err
	}
	index, err := c.claim()
	if err != nil {
		return err
	}
	slot, state := &c.slots[index], state6(from, forward, reply)
	slot.From, slot.Reply, slot.Opened = from, key, monotonic()
	slot.Service, slot.Revision = forward.Service, revision
	slot.Client, slot.Backend = c.ids[from.Saddr], c.ids[key.Saddr]
	slot.Flags = forward.Flags &^ (ConnectionForward | closing6)
	for key, old := range map[Tuple]connection6{from: forward, key: reply} {
		if err := c.o.Connections.Put(key, ConnectionRow{
			To: old.To, AddrDiff: old.AddrDiff, PortDiff: old.PortDiff, Slot: index, Use: slot.Use,
			Flags: slot.Flags | old.Flags&ConnectionForward, Path: old.Path,
		}); err != nil {
			return err
		}
	}
	if slotState(state) != SlotClosed {
		atomic.AddUint64(&c.usage[slot.Client%usageClients], 1)
		atomic.AddUint64(&c.usage[usageTotal], 1)
	}
	atomic.StoreUint32(&slot.State, state)
	return nil
}

// alive reports whether a tuple has a connection in the new maps.
func (c *copier) alive(key Tuple) (bool, error) {
	row, ok, err := c.o.Connections.Get(key)
	if err != nil || !ok || int(row.Slot) >= len(c.slots) {
		return false, err
	}
	slot := &c.slots[row.Slot]
	return slotState(atomic.LoadUint32(&slot.State)) > slotClaimed && slot.Use == row.Use, nil
}

// revision returns the set of backends that a connection is of. Layout 6 deleted UDP connections whose backend was removed:
// those that are left are of the service's current one.
func (c *copier) revision(from Tuple, row connection6) (uint32, error) {
	if from.Proto != unix.IPPROTO_UDP {
		return row.Revision, nil
	}
	service, ok, err := c.old.services.Get(ServiceKey{Addr: from.Daddr, Port: from.Dport, Proto: from.Proto})
	if !ok || service.ID != row.Service {
		return row.Revision, err
	}
	return service.Revision, err
}

// claim takes a free slot.
func (c *copier) claim() (uint32, error) {
	for ; c.next < len(c.slots); c.next++ {
		slot := &c.slots[c.next]
		if atomic.CompareAndSwapUint32(&slot.State, slotFree, slotClaimed|rand.Uint32()<<8) {
			atomic.StoreUint64(&slot.Seen, monotonic())
			return uint32(c.next), nil
		}
	}
	return 0, &FullError{Map: tcMapSlots, Size: uint32(len(c.slots))}
}

// state6 returns the state of a connection by its rows.
func state6(from Tuple, forward, reply connection6) uint32 {
	if from.Proto == unix.IPPROTO_UDP {
		return SlotReplied
	}
	const finClient, finBackend = 0x100, 0x200 // SLOT_FIN_CLIENT and SLOT_FIN_BACKEND of bpf/mustang/maps.h
	state := SlotOpen
	if forward.Flags&reply.Flags&closing6 != 0 {
		state = SlotClosed
	}
	if forward.Flags&closing6 != 0 {
		state |= finClient
	}
	if reply.Flags&closing6 != 0 {
		state |= finBackend
	}
	return state
}

// reverse returns the tuple of packets in the other direction.
func reverse(t Tuple) Tuple {
	t.Saddr, t.Daddr, t.Sport, t.Dport = t.Daddr, t.Saddr, t.Dport, t.Sport
	return t
}
