// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
)

// onCPUs calls fn on the first CPUs that the process may use, as many as are wanted if it can.
func onCPUs(t *testing.T, wanted int, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	succeed(t, unix.SchedGetaffinity(0, &all))
	defer func() {
		noError(t, unix.SchedSetaffinity(0, &all))
	}()
	for cpu, left := 0, min(wanted, all.Count()); left > 0; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		left--
		var one unix.CPUSet
		one.Set(cpu)
		succeed(t, unix.SchedSetaffinity(0, &one))
		fn()
	}
}

// TestCopiesExpire deletes rows without a notice to the programs, like a process that is killed before the notice.
// The programs' copies serve for about a second.
func TestCopiesExpire(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.open(t, w.backend)
	forward, direct := w.next(w.client, w.service), w.next(w.client, netip.AddrPortFrom(w.backend.Addr(), 9))
	w.send(t, fromHost, forward)
	w.send(t, fromHost, direct)
	w.evict(t)
	succeed(t, w.objects.Endpoints.Delete(rows.EncodeAddr(w.backend.Addr())))
	before := counts(t, w.Datapath)
	for range 1000 {
		w.run(t, fromHost, direct.frame())
		w.run(t, fromHost, forward.frame())
		time.Sleep(10 * time.Millisecond)
		if diff := delta(t, w.Datapath, before); diff["new_connection"] > 0 && diff["passed"] > 0 {
			return
		}
	}
	t.Error("the copies of deleted rows are used still")
}

// TestFirstPacketsLookNothingUp deletes the rows of a connection that was just opened, without a notice to the
// programs. Copies made with the rows serve for the next packets, and record these packets' changes in the slot. A
// copy serves until the clock of the copies strikes, so a few connections are tried.
func TestFirstPacketsLookNothingUp(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	for port := uint16(40000); port < 40020; port++ {
		client := netip.AddrPortFrom(w.client.Addr(), port)
		back := w.first(w.backend, client).with(func(p *packet) { p.flags = flagSYN | flagACK })
		there := w.next(client, w.service).with(func(p *packet) { p.ack = 1 })
		served := 0
		onCPUs(t, 2, func() {
			w.forget(t)
			w.send(t, fromHost, w.first(client, w.service))
			w.evict(t)
			_, answered := w.run(t, fromHost, back.frame())
			_, acknowledged := w.run(t, fromHost, there.frame())
			if string(answered) == string(back.became(w.service, client, "0c").frame()) &&
				string(acknowledged) == string(there.became(client, w.backend, "0a").frame()) {
				served++
				w.inState(t, flows.StateEstablished)
			}
		})
		if served > 0 {
			return
		}
	}
	t.Error("the packets after the first one needed the rows of each connection")
}

// TestShortConnectionsReuseSlots opens and closes connections for longer than closed ones keep their slots. Later ones
// take the slots of the first, whose memory is in the processor's caches.
func TestShortConnectionsReuseSlots(t *testing.T) {
	const slots, each = 16384, 400
	w := withSlots(t, slots)
	used := 0
	for try := range uint16(5) { // a machine may be so slow that some still keep their slots
		w.forget(t)
		w.clearSlots(t)
		onCPUs(t, 2, func() {
			w.openAndClose(t, 10000+try*1000, each)
			time.Sleep(1500 * time.Millisecond) // the slots of closed connections are kept for a second
			w.openAndClose(t, 10000+try*1000+each, each)
		})
		used = 0
		for index := range uint32(slots) {
			var slot objects.Slot
			succeed(t, w.objects.Slots.Map.Lookup(index, &slot))
			if slot.Use > 0 {
				used++
			}
		}
		if used < 3*each {
			return
		}
	}
	t.Errorf("twice %d connections on each of two CPUs took %d slots", each, used)
}

// clearSlots makes all slots as they were before the first connection.
func (w *world) clearSlots(t *testing.T) {
	t.Helper()
	for index := range uint32(w.objects.Slots.Len()) {
		succeed(t, w.objects.Slots.Map.Put(index, objects.Slot{}))
	}
}

// evict empties the map of connections without a notice to the programs.
func (w *world) evict(t *testing.T) {
	t.Helper()
	for row, err := range w.objects.Connections.All() {
		succeed(t, errors.Join(err, w.objects.Connections.Delete(row.Key)))
	}
}

func (w *world) unserve(t *testing.T, frontend netip.AddrPort) {
	t.Helper()
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend,
		Protocol: service.Protocol(w.proto)}))
}

// age makes all connections older, by less than the time since the machine has started.
func (w *world) age(t *testing.T, d time.Duration) {
	t.Helper()
	w.ageAll(t, func(slot *objects.Slot) { slot.Seen -= uint64(d) })
}

func (w *world) ageAll(t *testing.T, change func(*objects.Slot)) {
	t.Helper()
	aged := make(map[uint32]objects.Slot)
	succeed(t, w.objects.Slots.Each(func(index uint32, slot objects.Slot) bool {
		change(&slot)
		aged[index] = slot
		return true
	}))
	for index, slot := range aged {
		succeed(t, w.objects.Slots.Map.Put(index, slot))
	}
}

// inState fails the test unless there is one connection, in a state.
func (w *world) inState(t *testing.T, want flows.State) {
	t.Helper()
	list, err := w.Connections()
	if err != nil || len(list) != 1 || list[0].State != want || list[0].Protocol != service.Protocol(w.proto) {
		t.Fatalf("connections %v, %v; want one in state %v", list, err, want)
	}
}
