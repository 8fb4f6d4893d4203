// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// TestLastPackets closes connections from both sides, opens others, and changes the backends. What is still on its way must
// go where the rest went: the last ACK, and the repeated FIN of a backend that lacks it.
func TestLastPackets(t *testing.T) {
	for name, older := range map[string]uint16{"with room for more": 0, "when older ones fill the table": 1940} {
		t.Run(name, func(t *testing.T) {
			sizes := objects.Sizes{Services: 64, Backends: 256, Connections: 2048, Endpoints: 32}
			b := benchOn(t, openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: sizes}))
			for _, v6 := range []bool{false, true} {
				w := newWorld(b, v6, protoTCP)
				w.reset(t, objects.AttachHost)
				w.serve(t, w.service, w.backend)
				w.serve(t, w.other, w.remote)
				w.openAndClose(t, 10000, older)
				time.Sleep(50 * time.Millisecond) // programs read a coarse clock
				const closed, opened = 100, 100
				w.openAndClose(t, 20000, closed)
				w.serve(t, w.service, w.remote)
				for i := range uint16(opened) {
					w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 30000+i), w.other))
				}
				if lost := w.lostLast(t, 20000, closed); lost > 0 {
					t.Errorf("%d of %d connections that had just been closed were forgotten", lost, closed)
				}
			}
		})
	}
}

// TestSlotsOfClosedConnections closes connections late, as a CPU begins with its slots again: while others are free, nobody takes
// over those that were closed just now.
func TestSlotsOfClosedConnections(t *testing.T) {
	runtime.LockOSThread() // each CPU has slots of its own
	var all, one unix.CPUSet
	succeed(t, unix.SchedGetaffinity(0, &all))
	defer func() {
		if err := unix.SchedSetaffinity(0, &all); err == nil {
			runtime.UnlockOSThread()
		}
	}()
	one.Set(0)
	succeed(t, unix.SchedSetaffinity(0, &one))
	w := newWorld(newBench(t), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.remote)
	const count, again = 100, 1300 * time.Millisecond // CURSOR_TIME in slots.h and a little more
	for i := range uint16(count) {
		w.openOne(t, 20000+i)
	}
	time.Sleep(again)
	for i := range uint16(count) {
		w.closeOne(t, 20000+i)
	}
	for i := range uint16(count) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 30000+i), w.other))
	}
	if lost := w.lostLast(t, 20000, count); lost > 0 {
		t.Errorf("%d of %d connections that had just been closed were forgotten", lost, count)
	}
}

// closing returns p with the flag of the end.
func closing(p packet) packet { return p.with(func(p *packet) { p.flags = flagFIN | flagACK }) }

// openAndClose makes connections of the client, whose both ends close. Their last packets stay out.
func (w *world) openAndClose(t *testing.T, port, count uint16) {
	t.Helper()
	for i := range count {
		w.openOne(t, port+i)
		w.closeOne(t, port+i)
	}
}

func (w *world) openOne(t *testing.T, port uint16) {
	t.Helper()
	client := netip.AddrPortFrom(w.client.Addr(), port)
	w.send(t, fromHost, w.first(client, w.service))
	w.send(t, fromHost, w.first(w.backend, client).with(func(p *packet) { p.flags = flagSYN | flagACK }))
	w.send(t, fromHost, w.next(client, w.service))
}

func (w *world) closeOne(t *testing.T, port uint16) {
	t.Helper()
	client := netip.AddrPortFrom(w.client.Addr(), port)
	w.send(t, fromHost, closing(w.next(client, w.service)))
	w.send(t, fromHost, closing(w.next(w.backend, client)))
}

// lostLast sends the last packets of connections to the first backend, and counts those that go astray.
func (w *world) lostLast(t *testing.T, port, count uint16) (lost int) {
	t.Helper()
	for i := range count {
		client := netip.AddrPortFrom(w.client.Addr(), port+i)
		again, last := closing(w.next(w.backend, client)), w.next(client, w.service)
		_, gotAgain := w.run(t, fromHost, again.frame())
		_, gotLast := w.run(t, fromHost, last.frame())
		if string(gotAgain) != string(again.became(w.service, client, "0c").frame()) ||
			string(gotLast) != string(last.became(client, w.backend, "0a").frame()) {
			lost++
		}
	}
	return lost
}

// TestPortOfClosedConnection uses the port of a connection that has just been closed for another service with the same
// backend. The last packets of the first one must not become those of a new connection.
func TestPortOfClosedConnection(t *testing.T) {
	b := newBench(t)
	for _, v6 := range []bool{false, true} {
		w := newWorld(b, v6, protoTCP)
		w.reset(t, objects.AttachHost)
		w.serve(t, w.other, w.backend)
		lost := 0
		for port := range uint16(20) {
			w.serve(t, w.service, w.backend)
			w.openAndClose(t, 20000+port, 1)
			w.serve(t, w.service, w.remote)
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 20000+port), w.other))
			lost += w.lostLast(t, 20000+port, 1)
		}
		if lost > 0 {
			t.Errorf("the last packets of %d of 20 connections went astray", lost)
		}
	}
}
