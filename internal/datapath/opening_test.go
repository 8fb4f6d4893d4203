// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/testkit"
)

// TestFirstPacketsAtOnce sends the first packet of each connection twice at once, on two CPUs, while another service with the
// same backend has the port of some. Both must become the same packet, of one connection.
func TestFirstPacketsAtOnce(t *testing.T) {
	const rounds = 3000
	for name, proto := range map[string]uint8{"SYN": protoTCP, "datagram": protoUDP} {
		t.Run(name, func(t *testing.T) {
			d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 64, Backends: 256, Connections: 4 * rounds, Endpoints: 32}})
			w := newWorld(benchOn(t, d), false, proto)
			w.reset(t, objects.AttachHost)
			w.serve(t, w.service, w.backend)
			w.serve(t, w.other, w.backend)
			client := func(i int) netip.AddrPort { return netip.AddrPortFrom(w.client.Addr(), uint16(10000+i)) }
			for i := 0; i < rounds; i += 2 {
				w.send(t, fromHost, w.first(client(i), w.other))
			}
			p := w.loaded(t, fromHost)
			var ready atomic.Int64
			var running sync.WaitGroup
			var became [2][rounds][]byte
			for end := range became {
				running.Go(func() {
					for i := range rounds {
						frame := w.first(client(i), w.service).frame()
						for ready.Add(1); ready.Load() < int64(2*i+2); {
							runtime.Gosched()
						}
						_, out, err := p.Test(frame)
						if err != nil {
							t.Error(err)
						}
						became[end][i] = out
					}
				})
			}
			running.Wait()
			different := 0
			for i := range rounds {
				if !bytes.Equal(became[0][i], became[1][i]) {
					different++
				}
			}
			open, err := w.objects.Slots.Open()
			if different > 0 || open != rounds+rounds/2 || err != nil {
				t.Errorf("%d connections are open, want %d; of %d, the packets became different ones; %v", open, rounds+rounds/2, different, err)
			}
			w.recount(t, 1, 2)
		})
	}
}

// TestRowOfAnotherConnection stores the row of another connection under a tuple, as a program sees it that reads a row while
// it is deleted and used again. No packet must follow it.
func TestRowOfAnotherConnection(t *testing.T) {
	w := newWorld(newBench(t), false, protoTCP)
	w.reset(t, objects.AttachHost)
	w.serve(t, w.service, w.backend)
	w.serve(t, w.other, w.remote)
	w.send(t, fromHost, w.first(w.client, w.other))
	client := netip.AddrPortFrom(w.client.Addr(), 50000)
	p := w.next(client, w.service)
	key := func(from, to netip.AddrPort) objects.Tuple {
		return objects.Tuple{Saddr: rows.EncodeAddr(from.Addr()), Sport: rows.SwapPort(from.Port()),
			Daddr: rows.EncodeAddr(to.Addr()), Dport: rows.SwapPort(to.Port()), Proto: protoTCP}
	}
	row, ok, err := w.objects.Connections.Get(key(w.client, w.other))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	succeed(t, w.objects.Connections.Put(key(client, w.service), row))
	w.check(t, fromHost, p, wants{actionRedirect, p.became(client, w.backend, "0a"), once("new_connection", "forward", "redirect_peer")})
	w.check(t, fromHost, p, wants{actionRedirect, p.became(client, w.backend, "0a"), once("forward", "redirect_peer")})
}

// TestPortSearch has a client whose ports to a backend are taken: all of them, then three of four.
func TestPortSearch(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Connections: 1 << 18, Services: 8, Backends: 8, Endpoints: 8}})
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
		keys = append(keys, objects.Tuple{Saddr: rows.EncodeAddr(w.backend.Addr()), Sport: rows.SwapPort(w.backend.Port()),
			Daddr: rows.EncodeAddr(w.client.Addr()), Dport: rows.SwapPort(uint16(port)), Proto: w.proto})
		values = append(values, objects.ConnectionRow{To: objects.Tuple{Saddr: rows.EncodeAddr(w.other.Addr())}})
	}
	if n, err := w.objects.Connections.PutBatch(keys, values); err != nil || n != len(keys) {
		t.Fatal(n, err)
	}
	return keys
}
