// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// openForged returns a world whose table has some slots and one connection, the connection's next packet, and an RST
// that its backend ignores.
func openForged(t *testing.T, slots uint32) (w *world, own, rst packet) {
	t.Helper()
	w = withSlots(t, slots)
	w.serve(t, w.other, w.remote)
	w.send(t, fromHost, w.first(w.client, w.service))
	w.handshake(t, w.client, w.service, w.backend)
	own = w.next(w.client, w.service)
	return w, own, own.with(func(p *packet) { p.flags, p.seq = flagRST, 12345 })
}

// fillWith opens connections of pods to another service, up to their shares.
func (w *world) fillWith(t *testing.T, from uint16, pods ...netip.AddrPort) {
	t.Helper()
	for port := range uint16(100) {
		for _, pod := range pods {
			w.run(t, fromHost, w.first(netip.AddrPortFrom(pod.Addr(), from+port), w.other).frame())
		}
	}
}

// TestForgedReset has a connection reset by somebody else, and go on. Others then fill the table, and its service gets
// another backend: it keeps its slot and its backend.
func TestForgedReset(t *testing.T) {
	w, own, rst := openForged(t, 10)
	w.send(t, fromHost, rst)
	w.send(t, fromHost, own)
	w.age(t, 2*time.Second)
	w.serve(t, w.service, w.remote)
	w.fillWith(t, 2000, w.client, w.backend)
	w.gets(t, fromHost, own, "redirect client>backend 0a: forward redirect_peer")
}

// TestForgedResetBeyondShare has a client at its limit continue a connection that a reset has closed: the connection
// does not count as open again.
func TestForgedResetBeyondShare(t *testing.T) {
	w, own, rst := openForged(t, 64)
	w.fillWith(t, 2000, w.client)
	w.send(t, fromHost, rst)
	w.fillWith(t, 3000, w.client)
	before := must(w.objects.Slots.Open())(t)
	w.run(t, fromHost, own.frame())
	equal(t, must(w.objects.Slots.Open())(t), before, "open connections, of the client's share")
}

// TestDirectConnectionAfterService has a client use the port of a closed connection to a service for connections to the
// backend itself. What opens without the table goes on without it.
func TestDirectConnectionAfterService(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	w.openAndClose(t, w.client.Port(), 1)
	changed := func(p packet) bool {
		t.Helper()
		_, out := w.run(t, fromHost, p.frame())
		return string(out) != string(p.became(p.src, p.dst, "0a").frame())
	}
	testkit.Require(t, changed(w.first(w.client, w.backend)),
		"a connection to the backend has the port of one that a service has just closed")
	w.ageAll(t, func(slot *objects.Slot) {
		slot.State = slot.State&^0xff | objects.SlotClosed
		slot.Seen -= uint64(2 * time.Second)
	})
	for _, p := range []packet{w.first(w.client, w.backend), w.next(w.client, w.backend)} {
		failIf(t, changed(p), "a packet with flags %#x was changed", p.flags)
	}
}

// TestRowOfAnother gives a service the row of another one, as a program may see it that reads while rows are replaced.
func TestRowOfAnother(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.remote)
	key := rows.ServiceKey(w.service, service.TCP)
	row, found, err := w.objects.Services.Get(key)
	testkit.Require(t, err == nil && found, "%v, %v", found, err)
	row.Tag = w.objects.NodeState.Tag(rows.ServiceKey(w.other, service.TCP))
	succeed(t, w.objects.Services.Put(key, row))
	p := w.first(w.client, w.service)
	_, out := w.run(t, fromHost, p.frame())
	testkit.Check(t, string(out) == string(p.frame()), "the backend is that of another service")
}

// TestNextConnectionOfPort has a client use the port of a closed connection to the service again. With the same backend
// it takes over the rows of the old one, and with another it does not.
func TestNextConnectionOfPort(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	w.openAndClose(t, w.client.Port(), 1)
	opened := func(backend netip.AddrPort) objects.Slot {
		t.Helper()
		before := counts(t, w.Datapath)["new_connection"]
		w.send(t, fromHost, w.first(w.client, w.service))
		list, err := w.Connections()
		if err != nil || len(list) != 1 || list[0].State != flows.StateSYN || list[0].Backend != backend ||
			list[0].Source != w.client {
			t.Fatalf("connections %+v, want one to %s; %v", list, backend, err)
		}
		equal(t, counts(t, w.Datapath)["new_connection"]-before, 1, "new connections were counted")
		var found objects.Slot
		succeed(t, w.objects.Slots.Each(func(_ uint32, slot objects.Slot) bool { found = slot; return false }))
		w.handshake(t, w.client, w.service, backend)
		list, err = w.Connections()
		failIf(t, err != nil || list[0].State != flows.StateEstablished, "after the handshake: %+v, %v", list, err)
		for _, p := range []packet{w.next(w.client, w.service), w.next(backend, w.client)} {
			w.send(t, fromHost, closing(p))
		}
		return found
	}
	first := opened(w.backend)
	again := opened(w.backend)
	failIf(t, again.Use != first.Use, "the second connection has rows of its own: use %d, then %d", first.Use, again.Use)
	w.serve(t, w.service, w.other)
	moved := opened(w.other)
	testkit.Check(t, moved.Use != first.Use, "a connection to another backend has the rows of the old one")
}

// TestFirstPacketsAtOnce sends the first packet of each connection twice at once, on two CPUs, while another service
// with the same backend has the port of some. Both must become the same packet, of one connection.
func TestFirstPacketsAtOnce(t *testing.T) {
	const rounds = 1000
	for name, proto := range map[string]uint8{"SYN": protoTCP, "datagram": protoUDP} {
		t.Run(name, func(t *testing.T) {
			w := pods(t, false, proto)
			w.serve(t, w.service, w.backend)
			w.serve(t, w.other, w.backend)
			client := func(i int) netip.AddrPort { return netip.AddrPortFrom(w.client.Addr(), uint16(10000+i)) }
			for i := 0; i < rounds; i += 2 {
				w.send(t, fromHost, w.first(client(i), w.other))
			}
			became := w.atOnce(t, rounds, func(_, i int) packet { return w.first(client(i), w.service) })
			different := 0
			for i := range rounds {
				if !bytes.Equal(became[0][i], became[1][i]) {
					different++
				}
			}
			open, err := w.objects.Slots.Open()
			failIf(t, different > 0 || open != rounds+rounds/2 || err != nil,
				"%d connections are open, want %d; of %d, the packets became different ones; %v", open, rounds+rounds/2, different,
				err)
			w.recount(t, 1, 2)
		})
	}
}

// TestRowOfAnotherConnection stores the row of another connection under a tuple, as a program sees it that reads a row
// while it is deleted and used again. No packet must follow it.
func TestRowOfAnotherConnection(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.remote)
	w.send(t, fromHost, w.first(w.client, w.other))
	client := netip.AddrPortFrom(w.client.Addr(), 50000)
	p := w.next(client, w.service)
	row, ok, err := w.objects.Connections.Get(w.tuple(w.client, w.other))
	testkit.Require(t, err == nil && ok, "%v, %v", ok, err)
	succeed(t, w.objects.Connections.Put(w.tuple(client, w.service), row))
	w.check(t, fromHost, p, wants{actionRedirect, p.became(client, w.backend, "0a"), once("new_connection", "forward",
		"redirect_peer")})
	w.check(t, fromHost, p, wants{actionRedirect, p.became(client, w.backend, "0a"), once("forward", "redirect_peer")})
}

// TestPortSearch tests a client whose ports to a backend are taken: all of them, then three of four.
func TestPortSearch(t *testing.T) {
	d := openFresh(t, objects.Sizes{Connections: 1 << 18, Services: 8, Backends: 8, Endpoints: 8})
	w := newWorld(benchOn(t, d), false, protoUDP)
	w.serve(t, w.service, w.backend)
	taken := w.takePorts(t)
	for range 100 {
		w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_port_exhausted")
	}
	for i := 0; i < len(taken); i += 4 {
		succeed(t, d.objects.Connections.Delete(taken[i]))
	}
	time.Sleep(200 * time.Millisecond) // a search that failed is remembered for half of that
	before := counts(t, d)
	for port := range uint16(1000) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 20001+port), w.service))
	}
	if got := delta(t, d, before); got["new_connection"] != 1000 || got["port_changed"] < 500 {
		t.Errorf("counted %v, want 1000 new connections, most of them with another port", got)
	}
}

// takePorts has connections of all ports of the client to the backend, and returns the tuples of their replies.
func (w *world) takePorts(t testing.TB) (keys []objects.Tuple) {
	t.Helper()
	var values []objects.ConnectionRow
	var now unix.Timespec
	succeed(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	succeed(t, w.objects.Slots.Map.Put(uint32(0), objects.Slot{State: objects.SlotReplied, Seen: uint64(now.Nano())}))
	for port := 1; port < 1<<16; port++ {
		keys = append(keys, w.tuple(w.backend, netip.AddrPortFrom(w.client.Addr(), uint16(port))))
		values = append(values, objects.ConnectionRow{To: objects.Tuple{Saddr: rows.EncodeAddr(w.other.Addr())}})
	}
	equal(t, must(w.objects.Connections.PutBatch(keys, values))(t), len(keys))
	return keys
}
