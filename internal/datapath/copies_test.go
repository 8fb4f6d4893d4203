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

// eachCPU calls fn on the first CPUs that the process may use, two if it can.
func eachCPU(t *testing.T, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	succeed(t, unix.SchedGetaffinity(0, &all))
	defer func() {
		noError(t, unix.SchedSetaffinity(0, &all))
	}()
	for cpu, left := 0, min(2, all.Count()); left > 0; cpu++ {
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

// TestCopies is the table of changes that must void the copies of connections and paths that each CPU has.
func TestCopies(t *testing.T) {
	runCases(t, objects.AttachHost, append(connectionCopies(), pathCopies()...))
}

// connectionCopies cover changes of connections.
func connectionCopies() []translateCase {
	return []translateCase{
		{"a connection whose client opens it again", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.next(w.client, w.service)
			forward := once("forward", "redirect_peer")
			eachCPU(t, func() { w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), forward}) })
			backend := netip.AddrPortFrom(w.backend.Addr(), 9090)
			w.serve(t, w.service, backend)
			w.ageAll(t, func(slot *objects.Slot) { slot.Opened -= uint64(time.Minute + time.Second) }) // no late SYN
			w.send(t, fromHost, w.first(w.client, w.service))
			eachCPU(t, func() { w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, backend, "0a"), forward}) })
			if w.proto == protoTCP { // the old backend's last packets are not the service's
				back := w.next(w.backend, w.client)
				eachCPU(t, func() {
					w.gets(t, fromHost, back, "redirect backend>client 0c: redirect_peer")
				})
			}
		}},
		{"a connection whose service is deleted", service.UDP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p, back := w.next(w.client, w.service), w.next(w.backend, w.client)
			eachCPU(t, func() {
				w.gets(t, fromHost, p, "redirect client>backend 0a: forward redirect_peer")
				w.gets(t, fromHost, back, "redirect service>client 0c: reverse redirect_peer")
			})
			succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: w.service, Protocol: service.UDP}))
			eachCPU(t, func() {
				w.gets(t, fromHost, p, "next: passed")
				// Answers that are under way.
				w.gets(t, fromHost, back, "redirect service>client 0c: reverse redirect_peer")
			})
		}},
		{"a connection whose rows are evicted, and whose client opens it again", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			backend := netip.AddrPortFrom(w.backend.Addr(), 9090)
			w.serve(t, w.service, backend)
			p := w.next(w.client, w.service)
			eachCPU(t, func() { w.send(t, fromHost, p) })
			w.evict(t)
			w.send(t, fromHost, w.first(w.client, w.service))
			eachCPU(t, func() {
				w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, backend, "0a"), once("forward", "redirect_peer")})
			})
		}},
		{"a reply that the stack brings", 0, func(t *testing.T, w *world) {
			w.open(t, w.remote)
			p := w.next(w.remote, w.client)
			for range 2 {
				w.gets(t, toHost, p, "next service>client: reverse passed")
			}
			w.forget(t)
			w.gets(t, toHost, p, "next: passed")
		}},
	}
}

// pathCopies cover changes of endpoints, and places that several rows share.
func pathCopies() []translateCase {
	return []translateCase{
		{"a pod that gets another device, and goes", 0, func(t *testing.T, w *world) {
			p := w.next(w.client, w.backend)
			to := func(pair string) func() {
				return func() {
					w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, pair), once("redirect_peer")})
				}
			}
			eachCPU(t, to("0a"))
			w.endpoint(t, pod{3, objects.AttachHost, "0b", "s"}, w.backend.Addr())
			eachCPU(t, to("0b"))
			succeed(t, w.Endpoints().deleteRows([]Endpoint{{IP: w.backend.Addr()}}, nil))
			eachCPU(t, func() { w.gets(t, fromHost, p, "next: passed") })
			w.endpoint(t, pod{4, objects.AttachHost, "0a", "s"}, w.backend.Addr())
			eachCPU(t, to("0a"))
		}},
		{"a backend that packets reach directly, whose pod goes and comes", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.next(netip.AddrPortFrom(w.client.Addr(), 40001), w.backend)
			direct := wants{actionRedirect, p.became(p.src, w.backend, "0a"), once("redirect_peer")}
			eachCPU(t, func() { w.check(t, fromHost, p, direct) })
			succeed(t, w.Endpoints().deleteRows([]Endpoint{{IP: w.backend.Addr()}}, nil))
			eachCPU(t, func() { w.gets(t, fromHost, p, "next: passed") })
			w.endpoint(t, pod{3, objects.AttachHost, "0a", "s"}, w.backend.Addr())
			eachCPU(t, func() { w.check(t, fromHost, p, direct) })
		}},
		{"a port that a client uses for a backend, and then for its service", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromHost, w.first(netip.AddrPortFrom(w.client.Addr(), 40001), w.service))
			p := w.next(w.client, w.backend)
			eachCPU(t, func() {
				w.gets(t, fromHost, p, "redirect client>backend 0a: redirect_peer")
			})
			w.send(t, fromHost, w.first(w.client, w.service))
			w.checkChanged(t, w.backend, once("new_connection", "port_changed", "forward", "redirect_peer"))
			p = w.next(w.backend, w.client)
			eachCPU(t, func() {
				w.gets(t, fromHost, p, "redirect service>client 0c: reverse redirect_peer")
			})
		}},
		{"two pods and two connections of one place", 0, func(t *testing.T, w *world) {
			// More addresses and ports than a CPU has copies: each is found by its own key.
			w.serve(t, w.service, w.backend)
			for round := range 2 {
				for port := uint16(40000); port < 40600; port++ {
					client := netip.AddrPortFrom(w.client.Addr(), port)
					p := w.next(client, w.service)
					if round == 0 {
						w.send(t, fromHost, w.first(client, w.service))
					}
					w.check(t, fromHost, p, wants{actionRedirect, p.became(client, w.backend, "0a"), once("forward", "redirect_peer")})
				}
			}
		}},
	}
}

// TestCopiesExpire deletes rows without a word to the programs, as a process does that is killed before it can say so.
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

// TestFirstPacketsLookNothingUp deletes the rows of a connection that was just opened, without a word to the programs:
// copies that were made with the rows serve for the next packets, and note in the slot what these change. A copy serves
// until the clock of the copies strikes, so a few connections are tried.
func TestFirstPacketsLookNothingUp(t *testing.T) {
	w := pods(t, false, protoTCP)
	w.serve(t, w.service, w.backend)
	for port := uint16(40000); port < 40020; port++ {
		client := netip.AddrPortFrom(w.client.Addr(), port)
		back := w.first(w.backend, client).with(func(p *packet) { p.flags = flagSYN | flagACK })
		there := w.next(client, w.service).with(func(p *packet) { p.ack = 1 })
		served := 0
		eachCPU(t, func() {
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
		eachCPU(t, func() {
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

// evict empties the map of connections and tells nobody.
func (w *world) evict(t *testing.T) {
	t.Helper()
	for row, err := range w.objects.Connections.All() {
		succeed(t, errors.Join(err, w.objects.Connections.Delete(row.Key)))
	}
}
