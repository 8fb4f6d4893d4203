// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// TestSCTPPackets is the table of SCTP packets: those of the other protocols, and its own.
func TestSCTPPackets(t *testing.T) {
	b := newBench(t)
	cases := slices.Concat(pathCases(), serviceCases(), fragmentCases(), icmpErrorCases(), outsideCases(),
		untouchedCases(), refuseCases(),
		sctpCases(), takenCases(), oddSCTPCases())
	for _, family := range []string{"ipv4", "ipv6"} {
		w := newWorld(b, family == "ipv6", protoSCTP)
		w.backend = netip.AddrPortFrom(w.backend.Addr(), w.service.Port()) // no port can change
		w.remote = netip.AddrPortFrom(w.remote.Addr(), w.service.Port())
		w.other = netip.AddrPortFrom(w.other.Addr(), w.service.Port())
		for _, c := range cases {
			// A service at a loopback address is for sockets, of which those of SCTP are not translated.
			if c.only != 0 && c.only != service.SCTP || strings.Contains(c.name, "loopback") {
				continue
			}
			t.Run(family+"/"+c.name, func(t *testing.T) {
				w.reset(t, objects.AttachHost)
				c.run(t, w)
			})
		}
	}
}

func sctpCases() []translateCase {
	return []translateCase{
		{"an association from its beginning to its end", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			there := func(chunk uint8, state flows.State) {
				w.send(t, fromHost, w.chunk(w.client, w.service, chunk))
				w.inState(t, state)
			}
			back := func(chunk uint8, state flows.State) {
				w.send(t, fromHost, w.chunk(w.backend, w.client, chunk))
				w.inState(t, state)
			}
			const cookieAck, sack, heartbeat, heartbeatAck, shutdown, shutdownAck = 11, 3, 4, 5, 7, 8
			there(chunkInit, flows.StateSYN)
			there(chunkInit, flows.StateSYN)
			back(chunkInitAck, flows.StateSYN)
			there(chunkCookieEcho, flows.StateSYN)
			back(cookieAck, flows.StateEstablished)
			there(chunkData, flows.StateEstablished)
			back(sack, flows.StateEstablished)
			back(heartbeat, flows.StateEstablished)
			there(heartbeatAck, flows.StateEstablished)
			there(shutdown, flows.StateEstablished)
			back(shutdownAck, flows.StateEstablished)
			there(chunkShutdownComplete, flows.StateClosed)
		}},
		{"an association that an end aborts", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromHost, w.chunk(w.client, w.service, chunkInit))
			w.send(t, fromHost, w.chunk(w.client, w.service, chunkCookieEcho))
			w.send(t, fromHost, w.chunk(w.backend, w.client, chunkAbort))
			w.inState(t, flows.StateClosed)
		}},
		{"a restart", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.send(t, fromHost, w.chunk(w.client, w.service, chunkCookieEcho))
			p := w.first(w.client, w.service)
			w.gets(t, fromHost, p, "redirect client>backend 0a: kept_connection forward redirect_peer")
		}},
	}
}

// takenCases are those of ports that another association has.
func takenCases() []translateCase {
	opened := once("new_connection", "forward", "redirect_peer")
	return []translateCase{
		{"a backend to which the port is taken", 0, func(t *testing.T, w *world) {
			w.serve(t, w.other, w.backend)
			w.send(t, fromHost, w.first(w.client, w.other))
			w.serve(t, w.service, w.backend, w.remote)
			for range 20 {
				w.check(t, fromHost, w.first(w.client, w.service), wants{actionNext,
					w.first(w.client, w.service).became(w.client, w.remote, ""), once("new_connection", "forward", "passed")})
				must(w.ConnectionTable().Flush(t.Context(), flows.Filter{Service: w.service}))(t)
				w.client = netip.AddrPortFrom(w.client.Addr(), w.client.Port()+1)
				w.send(t, fromHost, w.first(w.client, w.other))
			}
			w.client = netip.AddrPortFrom(w.client.Addr(), 40000)
		}},
		{"no backend to which the port is free", 0, func(t *testing.T, w *world) {
			w.serve(t, w.other, w.backend)
			w.send(t, fromHost, w.first(w.client, w.other))
			w.serve(t, w.service, w.backend)
			w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_port_exhausted")
			// The other association ends, a second ago.
			must(w.ConnectionTable().Flush(t.Context(), flows.Filter{Service: w.other}))(t)
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), opened})
		}},
		{"an association with a pod itself whose port a service's has", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.gets(t, fromHost, w.first(w.client, w.backend), "drop: drop_port_exhausted")
		}},
	}
}

func oddSCTPCases() []translateCase {
	return []translateCase{
		{"a service of TCP and UDP", 0, func(t *testing.T, w *world) {
			w.put(t, service.Any, w.service, w.backend)
			w.gets(t, fromHost, w.first(w.client, w.service), "next: passed")
		}},
		{"an end of an association that is refused", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service)
			for _, chunk := range []uint8{chunkAbort, chunkShutdownComplete} {
				w.gets(t, fromHost, w.chunk(w.client, w.service, chunk), "drop: drop_no_backend")
			}
		}},
		{"without a chunk", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p, want := w.next(w.client, w.service), w.next(w.client, w.backend).became(w.client, w.backend, "0a")
			// The ports alone change nothing in the header, so both frames end after it.
			end := len(p.frame()) - len(p.payload) - 4
			p.mangle, want.mangle = shorten(len(p.payload)+4), shorten(len(p.payload)+4)
			_, out := w.run(t, fromHost, p.frame()[:end])
			if string(out) != string(want.frame()[:end]) {
				t.Errorf("packet after the program\n%x, want\n%x", out, want.frame()[:end])
			}
		}},
	}
}

// shorten lowers the length of an IP packet.
func shorten(n int) func([]byte) {
	return func(ip []byte) {
		if ip[0]>>4 == 6 {
			ip[5] -= byte(n)
			return
		}
		ip[3] -= byte(n)
		ip[10], ip[11] = 0, 0
		check := ^sum(ip[:20])
		ip[10], ip[11] = byte(check>>8), byte(check)
	}
}

// chunk returns a packet with a chunk of a type.
func (w *world) chunk(src, dst netip.AddrPort, kind uint8) packet {
	return w.next(src, dst).with(func(p *packet) { p.flags = kind })
}

// inState fails the test unless there is one connection, in a state.
func (w *world) inState(t *testing.T, want flows.State) {
	t.Helper()
	list, err := w.Connections()
	if err != nil || len(list) != 1 || list[0].State != want || list[0].Protocol != service.Protocol(w.proto) {
		t.Fatalf("connections %v, %v; want one in state %v", list, err, want)
	}
}
