// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// openConnections returns the worlds of TCP and UDP over one datapath. One client has two open TCP connections, and
// another has one UDP connection to a second service.
func openConnections(t *testing.T, b *bench) (tcp, udp *world) {
	t.Helper()
	tcp, udp = newWorld(b, false, protoTCP), newWorld(b, false, protoUDP)
	tcp.reset(t, objects.AttachHost)
	tcp.serve(t, tcp.service, tcp.backend)
	udp.serve(t, udp.other, udp.remote)
	tcp.send(t, fromHost, tcp.first(tcp.client, tcp.service))
	tcp.send(t, fromHost, tcp.first(netip.AddrPortFrom(tcp.client.Addr(), 50000), tcp.service))
	tcp.handshake(t, tcp.client, tcp.service, tcp.backend)
	udp.send(t, fromHost, udp.next(udp.backend, udp.other))
	return tcp, udp
}

// TestConnectionFilter lists and flushes connections with each filter.
func TestConnectionFilter(t *testing.T) {
	b := newBench(t)
	w, udp := newWorld(b, false, protoTCP), newWorld(b, false, protoUDP)
	port := func(a netip.AddrPort, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), port) }
	for name, c := range map[string]struct {
		filter flows.Filter
		want   int
	}{
		"all":             {flows.Filter{}, 3},
		"client":          {flows.Filter{Client: w.client.Addr()}, 2},
		"no client":       {flows.Filter{Client: w.outsider.Addr()}, 0},
		"service":         {flows.Filter{Service: w.service}, 2},
		"service's port":  {flows.Filter{Service: port(w.service, 81)}, 0},
		"service's ports": {flows.Filter{Service: port(udp.other, 0)}, 1},
		"backend":         {flows.Filter{Backend: udp.remote}, 1},
		"backend's ports": {flows.Filter{Backend: port(w.backend, 0)}, 2},
		"protocol":        {flows.Filter{Protocol: service.UDP}, 1},
		"state":           {flows.Filter{States: []flows.State{flows.StateSYN}}, 1},
		"states":          {flows.Filter{States: []flows.State{flows.StateSYN, flows.StateUDP}}, 2},
		"client and state": {flows.Filter{Client: w.client.Addr(), States: []flows.State{flows.StateEstablished,
			flows.StateUDP}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			openConnections(t, b)
			list, err := w.ConnectionTable().List(c.filter)
			testkit.Require(t, err == nil && len(list) == c.want,
				"%d connections %+v, want %d; %v", len(list), list, c.want, err)
			n, err := w.ConnectionTable().Flush(t.Context(), c.filter)
			testkit.Require(t, err == nil && n == c.want, "%d were deleted, want %d; %v", n, c.want, err)
			left, err := w.Connections()
			open, openErr := w.objects.Slots.Open()
			testkit.Require(t, len(left) == 3-c.want && int(open) == len(left) && errors.Join(err, openErr) == nil,
				"%+v are left, %d counted; %v, %v", left, open, err, openErr)
		})
	}
}

// TestFlushedConnectionIsOpenedAnew sends a packet of a connection before and after it is deleted: no copy of it
// serves.
func TestFlushedConnectionIsOpenedAnew(t *testing.T) {
	w, _ := openConnections(t, newBench(t))
	p := w.next(w.client, w.service)
	w.gets(t, fromHost, p, "redirect client>backend 0a: forward redirect_peer")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := w.ConnectionTable().Flush(ended, flows.Filter{})
	testkit.Require(t, n == 0 && errors.Is(err, context.Canceled), "an ended context deleted %d; %v", n, err)
	must(w.ConnectionTable().Flush(t.Context(), flows.Filter{Client: w.client.Addr()}))(t)
	w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
}

// TestConnectionStats counts connections that are open, closed, expired and void.
func TestConnectionStats(t *testing.T) {
	w, udp := openConnections(t, newBench(t))
	stats := func(want flows.Stats) {
		t.Helper()
		got, err := w.ConnectionTable().Stats()
		testkit.Require(t, err == nil && maps.Equal(got.States, want.States), "%+v, want %+v; %v", got, want, err)
		got.States, want.States, want.Slots = nil, nil, 4096
		testkit.Require(t, fmt.Sprint(got) == fmt.Sprint(want), "%+v, want %+v", got, want)
	}
	stats(flows.Stats{
		States:  map[flows.State]int{flows.StateSYN: 1, flows.StateEstablished: 1, flows.StateUDP: 1},
		Largest: w.client.Addr(), LargestOpen: 2, Share: 3277,
	})
	w.send(t, fromHost, w.next(w.client, w.service).with(func(p *packet) { p.flags = flagRST }))
	udp.unserve(t, udp.other)
	stats(flows.Stats{
		States: map[flows.State]int{flows.StateSYN: 1, flows.StateClosed: 1}, Void: 1, Largest: w.client.Addr(),
		LargestOpen: 1, Share: 3277,
	})
	w.age(t, 61*time.Second)
	stats(flows.Stats{States: map[flows.State]int{}, Expired: 3, Share: 3277})
}

// TestTimeouts shortens time-outs, which end an open connection.
func TestTimeouts(t *testing.T) {
	w, _ := openConnections(t, newBench(t))
	table := w.ConnectionTable()
	timeouts := must(table.Timeouts())(t)
	for _, wrong := range []time.Duration{0, -time.Second, time.Millisecond, 1e6 * time.Hour} {
		refused := timeouts
		refused.UDP = wrong
		failIf(t, table.SetTimeouts(t.Context(), refused) == nil, "a time-out of %s was accepted", wrong)
	}
	timeouts.Established = time.Minute
	succeed(t, table.SetTimeouts(t.Context(), timeouts))
	equal(t, must(table.Timeouts())(t), timeouts, "time-outs")
	w.age(t, 61*time.Second)
	stats, err := table.Stats()
	failIf(t, err != nil || stats.Expired != 3, "%+v, want all expired; %v", stats, err)
}

// TestFullTable fills four of five slots of a small table with connections of six clients, which then expire and are
// taken over.
func TestFullTable(t *testing.T) {
	w := withSlots(t, 10)
	d := w.Datapath
	clients := []netip.Addr{w.client.Addr(), w.backend.Addr()}
	for id := range uint32(4) {
		clients = append(clients, netip.AddrFrom4([4]byte{192, 168, 10, byte(30 + id)}))
		w.endpoint(t, pod{3 + id, objects.AttachHost, "0e", "s"}, clients[2+id])
	}
	w.serve(t, w.service, w.remote)
	warned := func(wanted uint32, want int) {
		t.Helper()
		wantLen(t, must(d.ConnectionTable().Warnings(wanted))(t), want, "warnings")
	}
	open := 0
	for port := uint16(1024); open < 9 && port < 1100; port++ {
		if open == 8 {
			warned(0, 0)
		}
		before := counts(t, d)
		w.run(t, fromHost, w.first(netip.AddrPortFrom(clients[int(port)%6], port), w.service).frame())
		open += int(delta(t, d, before)["new_connection"])
	}
	testkit.Require(t, open == 9, "%d connections are open of 10", open)
	warned(10, 1)
	warned(12, 2)
	w.age(t, 61*time.Second)
	warned(10, 0)
	before := counts(t, d)
	for port := range uint16(5) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(clients[0], 2000+port), w.service))
	}
	if got := delta(t, d, before); got["slot_expired"] < 4 || got["slot_reused"] != 0 {
		t.Errorf("counted %v, want at least 4 slots expired, of 5 connections in a table with one free slot", got)
	}
	for port := range uint16(5) {
		w.send(t, fromHost, w.next(netip.AddrPortFrom(clients[0], 2000+port),
			w.service).with(func(p *packet) { p.flags = flagRST }))
	}
	before = counts(t, d)
	for port := range uint16(9) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(clients[int(port)%6], 3000+port), w.service))
	}
	got := delta(t, d, before)
	testkit.Check(t, got["slot_reused"] != 0, "counted %v, want closed slots reused", got)
}

// TestLastPackets closes connections from both sides, opens others, and changes the backends. Packets that are still on
// their way must go where the rest went: the last ACK, and the repeated FIN of a backend that lacks it.
func TestLastPackets(t *testing.T) {
	for name, older := range map[string]uint16{"with room for more": 0, "when older ones fill the table": 1940} {
		t.Run(name, func(t *testing.T) {
			b := withSlots(t, 2048).bench
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
				equal(t, w.lostLast(t, 20000, closed), 0, "connections that had just been closed were forgotten")
			}
		})
	}
}

// TestSlotsOfClosedConnections closes connections late, as a CPU begins with its slots again: while other slots are
// free, slots of connections closed just now are not reused.
func TestSlotsOfClosedConnections(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.remote)
	const count, again = 100, 1300 * time.Millisecond // CURSOR_TIME in slots.h and a little more
	lost := 0
	for range 5 { // on a busy machine they may be closed for a second by then
		w.forget(t)
		// Each CPU has slots of its own.
		onCPUs(t, 1, func() {
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
			lost = w.lostLast(t, 20000, count)
		})
		if lost == 0 {
			return
		}
	}
	t.Errorf("%d connections that had just been closed were forgotten", lost)
}

func closing(p packet) packet { return p.with(func(p *packet) { p.flags = flagFIN | flagACK }) }

// openAndClose makes connections of the client that both ends close. Their last packets are not sent.
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

// lostLast sends the last packets of connections to the first backend, and counts connections with a wrong translation.
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

// TestPortOfClosedConnection uses the port of a connection that has just been closed for another service with the
// same backend. The last packets of the first connection must not become packets of a new one.
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
		failIf(t, lost > 0, "the last packets of %d of 20 connections went astray", lost)
	}
}
