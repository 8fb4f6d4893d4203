// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

func withSlots(t *testing.T, connections uint32) *world {
	t.Helper()
	d := openFresh(t, objects.Sizes{Services: 64, Backends: 256, Connections: connections, Endpoints: 32})
	w := newWorld(benchOn(t, d), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	return w
}

// TestUsage opens and ends connections of two pods on all CPUs at once, with more ports than slots. Afterwards each
// pod's count must equal its open connections, and no slot may be lost.
func TestUsage(t *testing.T) {
	w, third := withSlots(t, 64), netip.MustParseAddr("192.168.10.77")
	w.endpoint(t, pod{3, objects.AttachHost, "0d", "s"}, third)
	w.serve(t, w.other, w.backend)
	p := w.loaded(t, fromHost)
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			for range testkit.Repeats(40_000, 1_000_000) {
				client := netip.AddrPortFrom([]netip.Addr{w.client.Addr(), third}[rand.IntN(2)], 40000+uint16(rand.IntN(24)))
				to := []netip.AddrPort{w.service, w.other, w.backend}[rand.IntN(3)]
				sent := w.next(client, to)
				if rand.IntN(3) == 0 {
					sent = w.next(w.backend, client)
				}
				sent.flags = []uint8{flagSYN, flagSYN, flagACK, flagFIN | flagACK, flagFIN | flagACK, flagRST}[rand.IntN(6)]
				if _, _, err := p.Test(sent.frame()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Go(func() {
		for range 1000 {
			if _, err := w.objects.EndConnections(func(s objects.Slot) bool { return s.From.Sport%8 == 0 }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	running.Wait()
	w.recount(t, 1, 2, 3)
}

// TestManyGreedyPods has pods open as many connections as they can, one pod after the other. A pod that comes last
// gets the minimum of each pod.
func TestManyGreedyPods(t *testing.T) {
	const slots, least, greedy = 2048, 8, 28
	w := withSlots(t, slots)
	open := func(client netip.Addr, count int) int {
		t.Helper()
		before := counts(t, w.Datapath)["new_connection"]
		for port := range uint16(count) {
			w.run(t, fromHost, w.first(netip.AddrPortFrom(client, 1024+port), w.service).frame())
		}
		return int(counts(t, w.Datapath)["new_connection"] - before)
	}
	all := 0
	for id := range uint32(greedy) {
		client := netip.AddrFrom4([4]byte{192, 168, 10, byte(30 + id)})
		w.endpoint(t, pod{3 + id, objects.AttachHost, "0e", "s"}, client)
		n := open(client, slots)
		failIf(t, n < least, "greedy pod %d got %d connections, want at least %d", id, n, least)
		failIf(t, id == 0 && (n < slots/2 || n > slots*2/3), "the first pod got %d of %d slots", n, slots)
		all += n
	}
	equal(t, open(w.client.Addr(), least), least, "with %d of %d slots in use, a pod without connections got", all, slots)
	equal(t, must(w.objects.Share())(t), least, "the share is")
}

// TestShareOfReusedPorts has a pod use the ports of its closed connections again, which takes over their slots: no way
// past its share.
func TestShareOfReusedPorts(t *testing.T) {
	const slots, least = 2048, 8
	w, other := withSlots(t, slots), netip.MustParseAddr("192.168.10.77")
	w.endpoint(t, pod{3, objects.AttachHost, "0d", "s"}, other)
	each := func(client netip.Addr, count int, flags ...uint8) {
		for port := range uint16(count) {
			for _, f := range flags {
				p := w.next(netip.AddrPortFrom(client, 1024+port), w.service)
				w.run(t, fromHost, p.with(func(p *packet) { p.flags = f }).frame())
			}
		}
	}
	open := func() int { return int(must(w.objects.Slots.Open())(t)) }
	each(w.client.Addr(), slots, flagSYN, flagRST)
	each(w.client.Addr(), slots, flagSYN)
	n := open()
	testkit.Check(t, n >= slots/2 && n <= slots*2/3, "a pod has %d of %d slots", n, slots)
	before := open()
	if each(other, least, flagSYN); open()-before != least {
		t.Errorf("another pod has %d connections, want %d", open()-before, least)
	}
	w.recount(t, 2, 3)
}

// recount compares the datapath's numbers of open connections with the slots.
func (b *bench) recount(t *testing.T, clients ...uint32) {
	t.Helper()
	const total, free, claimed = 65536, 0, 1
	want := make(map[uint32]uint64)
	for index := range uint32(b.objects.Slots.Len()) {
		var slot objects.Slot
		succeed(t, b.objects.Slots.Map.Lookup(index, &slot))
		switch b.objects.Slots.State(slot) {
		case free, objects.SlotClosed:
		case claimed:
			t.Errorf("slot %d is claimed still", index)
		default:
			want[slot.Client]++
			want[total]++
		}
	}
	succeed(t, b.objects.NodeState.ClientConns(func(conns []uint64) {
		for _, client := range append(clients, 0, total) {
			equal(t, conns[client], want[client], "row %d of client_conns", client)
		}
	}))
}

// TestEndsAtOnce has both ends of connections close at once, on two CPUs.
func TestEndsAtOnce(t *testing.T) {
	const rounds = 1000
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	port := func(i int) netip.AddrPort { return netip.AddrPortFrom(w.client.Addr(), uint16(10000+i)) }
	for i := range rounds {
		w.send(t, fromHost, w.first(port(i), w.service))
		w.send(t, fromHost, w.next(port(i), w.service))
	}
	w.atOnce(t, rounds, func(end, i int) packet {
		return closing([]packet{w.next(port(i), w.service), w.next(w.backend, port(i))}[end])
	})
	open, err := w.objects.Slots.Open()
	failIf(t, err != nil || open != 0, "%d connections are open still; %v", open, err)
	w.recount(t, 1, 2)
}

// atOnce runs a program on two packets at once, on two CPUs, for some rounds. It returns what they became.
func (w *world) atOnce(t *testing.T, rounds int, sent func(end, i int) packet) (became [2][][]byte) {
	t.Helper()
	p := w.loaded(t, fromHost)
	var ready atomic.Int64
	var running sync.WaitGroup
	for end := range became {
		running.Go(func() {
			for i := range rounds {
				frame := sent(end, i).frame()
				for ready.Add(1); ready.Load() < int64(2*i+2); {
					runtime.Gosched()
				}
				_, out, err := p.Test(frame)
				noError(t, err)
				became[end] = append(became[end], out)
			}
		})
	}
	running.Wait()
	return became
}

// TestFlushKilled creates the state after a killed Flush: of the two numbers of open connections, none, one or both are
// too high. The next command corrects them.
func TestFlushKilled(t *testing.T) {
	const client, total, mark = 2, 65536, 65537
	w := withSlots(t, 64)
	row := func(index uint32) (n uint64) {
		t.Helper()
		succeed(t, w.objects.NodeState.ClientConns(func(conns []uint64) { n = conns[index] }))
		return n
	}
	remains := func(want int) {
		t.Helper()
		wantLen(t, must(w.Remains())(t), want, "remains")
	}
	for port := range uint16(5) {
		w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 40000+port), w.service))
	}
	put := func(index uint32, n uint64) {
		t.Helper()
		succeed(t, w.objects.NodeState.ClientConns(func(conns []uint64) { conns[index] = n }))
	}
	for _, late := range [][]uint32{nil, {total}, {client, total}} {
		ended, marked := false, false
		must(w.objects.EndConnections(func(objects.Slot) (ends bool) {
			marked = row(mark) != 0
			ends, ended = !ended, true
			return ends
		}))(t)
		failIf(t, !marked, "a process that is killed now leaves no mark")
		remains(0)
		w.recount(t, client)
		for _, index := range late {
			put(index, row(index)+1)
		}
		put(mark, 1)
		remains(1)
		succeed(t, w.Recover(t.Context()))
		remains(0)
		w.recount(t, client)
	}
	equal(t, row(client), 2, "connections are left")
}
